"""Per-sample gradients of the cross-entropy: their Gram matrix, and their inner products with given directions.

The gradients are never materialized. `layer_recorder` provides the factors of most weights' gradients from one batched
pass. Weights that are used more than once, or by an unknown operation, are differentiated sample by sample, or by one
forward-mode pass per direction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from itl.gradients.layer_recorder import LayerCall, LayerRecorder, recordable_weights
from itl.gradients.virtual_update import Weights, gradients_or_zeros, logits_at
from itl.nets import thread_safe_jvp


def gradient_gram(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Inner products `[n, n]` of the samples' gradients with respect to all weights. It never synchronizes.

    Args:
        net: A network in evaluation mode, so that samples do not interact.
        x: Images `[n, c, h, w]`.
        y: Labels `[n]`.
    """
    weights: Weights = dict(net.named_parameters())
    recorded = recordable_weights(net, x)
    total, vectors = x.new_zeros(len(x), len(x)), [x.new_zeros(len(x), 0)]
    for call, g in _recorded_calls(net, weights, x, y)[0] if recorded else ():
        vectors += call.vector_gradients(g).values()
        factors = call.matrix_factors(g)
        if factors is not None:
            total += factored_gram(*(t.to(total.dtype) for t in factors))
    if len(recorded) < len(weights):
        vectors += _sample_by_sample(net, {name for name in weights if name not in recorded}, x, y)
    flat = torch.cat(vectors, 1).to(total.dtype)
    return total + flat @ flat.T


def factored_gram(g: Tensor, a: Tensor) -> Tensor:
    """Inner products `[n, n]` of the matrices Σ_l g_l a_lᵀ, from `g` `[n, o, l]` and `a` `[n, l, k]`.

    Uses the cheaper of two ways: either materialize the matrices `[n, o, k]`, or (for large matrices and few positions
    l) compute the inner products `[n l, n l]` of all positions of all samples.
    """
    (n, o, positions), k = g.shape, a.shape[2]
    if n * positions**2 * (o + k) <= (n + positions) * o * k:
        rows, columns = g.transpose(1, 2).flatten(0, 1), a.flatten(0, 1)
        return ((rows @ rows.T) * (columns @ columns.T)).view(n, positions, n, positions).sum((1, 3))
    # A GPU parallelizes over the batch of a bmm, not over one long inner dimension.
    parts = 1 if g.device.type == "cpu" else o
    matrices = torch.bmm(g, a).view(n, parts, -1).transpose(0, 1)
    return torch.bmm(matrices, matrices.transpose(1, 2)).sum(0)


@dataclass(frozen=True)
class PerSampleGradients:
    """The gradients of a batch's samples at leaf `weights`, in factored form, from one pass in evaluation mode.

    The directions may depend on `total` (the result of a virtual step): no second pass is needed for them.

    Attributes:
        net: The network.
        weights: The weights at which it is differentiated.
        x: Images `[n, c, h, w]`.
        y: Labels `[n]`.
        total: The gradient of the sum of the samples' cross-entropies.
        calls: The recorded layer calls, each with the gradient at its output.
    """

    net: nn.Module
    weights: Weights
    x: Tensor
    y: Tensor
    total: Weights
    calls: list[tuple[LayerCall, Tensor]]

    @torch.no_grad()
    def along(self, directions: Sequence[Weights]) -> Tensor:
        """Directional derivatives of each sample's cross-entropy: `[directions, n]`."""
        names, n = {w: name for name, w in self.weights.items()}, len(self.x)
        total, remaining = self.x.new_zeros(n, len(directions)), dict.fromkeys(self.weights)
        vectors, vector_directions = [self.x.new_zeros(n, 0)], [self.x.new_zeros(0, len(directions))]

        def components(weight: Tensor) -> list[Tensor]:
            name = names[weight]
            remaining.pop(name)
            return [direction[name] for direction in directions]

        for call, g in self.calls:
            if call.matrix is not None:
                total += call.along(g, components(call.matrix))
            for vector, gradient in call.vector_gradients(g).items():
                vectors.append(gradient)
                vector_directions.append(torch.stack(components(vector), 1))
        total += torch.cat(vectors, 1) @ torch.cat(vector_directions)
        return total.T + self._by_forward_mode(list(remaining), directions) if remaining else total.T

    def _by_forward_mode(self, names: list[str], directions: Sequence[Weights]) -> Tensor:
        """The part `[directions, n]` of the derivatives due to the named weights, by one pass per direction."""
        plain = {name: w.detach() for name, w in self.weights.items()}

        def losses(chosen: Weights) -> Tensor:
            return F.cross_entropy(logits_at(self.net, {**plain, **chosen}, self.x), self.y, reduction="none")

        primals = {name: plain[name] for name in names}
        tangents = [{name: direction[name] for name in names} for direction in directions]
        return torch.stack([thread_safe_jvp(losses, (primals,), (t,))[1] for t in tangents])


def per_sample_gradients(net: nn.Module, weights: Weights, x: Tensor, y: Tensor) -> PerSampleGradients:
    """Run one forward and backward pass. Neither this nor the result's methods synchronize with the device."""
    calls, grads = _recorded_calls(net, weights, x, y, list(weights.values()))
    return PerSampleGradients(net, weights, x, y, dict(zip(weights, grads, strict=True)), calls)


def _recorded_calls(
    net: nn.Module, weights: Weights, x: Tensor, y: Tensor, inputs: Sequence[Tensor] = ()
) -> tuple[list[tuple[LayerCall, Tensor]], Sequence[Tensor]]:
    """The layer calls of one pass, each with the gradient at its output, and the gradients with respect to `inputs`."""
    with torch.enable_grad():
        with LayerRecorder({weights[name] for name in recordable_weights(net, x)}) as recorder:
            logits = logits_at(net, weights, x)
        loss = F.cross_entropy(logits, y, reduction="sum")  # the gradient of the sum holds each sample's own
        grads = gradients_or_zeros(loss, [*recorder.output_edges, *inputs])
    count = len(recorder.calls)
    return list(zip(recorder.calls, grads[:count], strict=True)), grads[count:]


def _sample_by_sample(net: nn.Module, names: set[str], x: Tensor, y: Tensor) -> list[Tensor]:
    """Each sample's gradients with respect to the named weights: `[n, size]` each."""
    weights = {name: p.detach() for name, p in net.named_parameters()}

    def loss(chosen: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(net, {**weights, **chosen}, (x[None],)), y[None])

    chosen = {name: weights[name] for name in weights if name in names}
    return [g.flatten(1) for g in vmap(grad(loss), in_dims=(None, 0, 0))(chosen, x, y).values()]
