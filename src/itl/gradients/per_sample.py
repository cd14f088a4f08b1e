"""The gradients of single samples, layer by layer: their inner products with one another and with directions.

No gradient is ever held whole: `taps` gives what most weights' are made of in one batched pass. A weight that is used
in another way, or more than once, is differentiated sample by sample, or along each direction by a pass of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vmap

from itl.gradients.grad_sample import Tap, Taps, tapped_weights
from itl.gradients.virtual_update import Weights, gradients, said
from itl.nets import math_attention


def gram(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Inner products `[n, n]` of the samples' gradients of the cross-entropy by all weights; `net` is in evaluation
    mode, in which samples do not touch one another. Nothing here waits for the device.
    """
    weights: Weights = dict(net.named_parameters())
    tapped = tapped_weights(net, x)
    total, vectors = x.new_zeros(len(x), len(x)), [x.new_zeros(len(x), 0)]
    for tap, g in _taken(net, weights, x, y)[0] if tapped else ():
        vectors += tap.vectors(g).values()
        factors = tap.factors(g)
        if factors is not None:
            total += products(*(t.to(total.dtype) for t in factors))
    if len(tapped) < len(weights):
        vectors += _one_by_one(net, {name for name in weights if name not in tapped}, x, y)
    each = torch.cat(vectors, 1).to(total.dtype)
    return total + each @ each.T


def products(g: Tensor, a: Tensor) -> Tensor:
    """Inner products `[n, n]` of the matrices Σ_l g_l a_lᵀ, from `g` `[n, o, l]` and `a` `[n, l, k]`, the cheaper way.

    Either the matrices are made, `[n, o, k]`, or (where they are large and places few) the inner products of all
    places of all samples, `[n l, n l]`, with one another.
    """
    (n, o, places), k = g.shape, a.shape[2]
    if n * places**2 * (o + k) <= (n + places) * o * k:
        rows, columns = g.transpose(1, 2).flatten(0, 1), a.flatten(0, 1)
        return ((rows @ rows.T) * (columns @ columns.T)).view(n, places, n, places).sum((1, 3))
    parts = 1 if g.device.type == "cpu" else o  # of a sum so long: a GPU shares out batches, not a single sum
    each = torch.bmm(g, a).view(n, parts, -1).transpose(0, 1)
    return torch.bmm(each, each.transpose(1, 2)).sum(0)


@dataclass(frozen=True)
class Pass:
    """A batch's pass through `net` in evaluation mode at leaf `weights`: what it says of every sample's gradient.

    `gradient` is that of the sum of the samples' cross-entropies. Directions may be known only after it (a step tried,
    then judged): what is needed for the derivatives along them is kept, and no second pass is made.
    """

    net: nn.Module
    weights: Weights
    x: Tensor
    y: Tensor
    gradient: Weights
    taken: list[tuple[Tap, Tensor]]

    @torch.no_grad()
    def along(self, directions: Sequence[Weights]) -> Tensor:
        """How each sample's cross-entropy changes along each direction: `[directions, n]`."""
        names, n = {w: name for name, w in self.weights.items()}, len(self.x)
        total, left = self.x.new_zeros(n, len(directions)), dict.fromkeys(self.weights)
        vectors, ways = [self.x.new_zeros(n, 0)], [self.x.new_zeros(0, len(directions))]

        def parts(weight: Tensor) -> list[Tensor]:
            name = names[weight]
            left.pop(name)
            return [direction[name] for direction in directions]

        for tap, g in self.taken:
            if tap.matrix is not None:
                total += tap.along(g, parts(tap.matrix))
            for vector, each in tap.vectors(g).items():
                vectors.append(each)
                ways.append(torch.stack(parts(vector), 1))
        total += torch.cat(vectors, 1) @ torch.cat(ways)
        return total.T + self._by_forward_mode(list(left), directions) if left else total.T

    def _by_forward_mode(self, names: list[str], directions: Sequence[Weights]) -> Tensor:
        """The same `[directions, n]` by the weights of these names alone, a pass a direction."""
        plain = {name: w.detach() for name, w in self.weights.items()}

        def losses(chosen: Weights) -> Tensor:
            return F.cross_entropy(said(self.net, {**plain, **chosen}, self.x), self.y, reduction="none")

        at, ways = {name: plain[name] for name in names}, [{name: d[name] for name in names} for d in directions]
        with math_attention():
            return torch.stack([jvp(losses, (at,), (way,))[1] for way in ways])  # type: ignore[no-untyped-call]


def passed(net: nn.Module, weights: Weights, x: Tensor, y: Tensor) -> Pass:
    """A pass, made. Nothing here, nor in what is asked of it, waits for the device."""
    taken, grads = _taken(net, weights, x, y, list(weights.values()))
    return Pass(net, weights, x, y, dict(zip(weights, grads, strict=True)), taken)


def _taken(
    net: nn.Module, weights: Weights, x: Tensor, y: Tensor, others: Sequence[Tensor] = ()
) -> tuple[list[tuple[Tap, Tensor]], Sequence[Tensor]]:
    """The taps of one pass, each with the gradient at its output, and the gradients by `others`."""
    with torch.enable_grad():
        with Taps({weights[name] for name in tapped_weights(net, x)}) as taps:
            logits = said(net, weights, x)
        loss = F.cross_entropy(logits, y, reduction="sum")  # of a sum of samples each has its own gradient
        grads = gradients(loss, [*taps.ends, *others])
    count = len(taps.calls)
    return list(zip(taps.calls, grads[:count], strict=True)), grads[count:]


def _one_by_one(net: nn.Module, names: set[str], x: Tensor, y: Tensor) -> list[Tensor]:
    """Each sample's gradients by the weights of these names: `[n, size]` each."""
    weights = {name: p.detach() for name, p in net.named_parameters()}

    def loss(chosen: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(net, {**weights, **chosen}, (x[None],)), y[None])

    chosen = {name: weights[name] for name in weights if name in names}
    return [g.flatten(1) for g in vmap(grad(loss), in_dims=(None, 0, 0))(chosen, x, y).values()]
