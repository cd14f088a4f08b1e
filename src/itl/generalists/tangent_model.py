"""The tangent model g(w; x) = p(θ; x) + ∇p(θ; x) w: linear in w, so that cross-entropy is convex in it."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp

from itl.nets import Net, frozen, jvp_rules, math_attention

Vector = dict[str, Tensor]


class TangentModel:
    """A network linearised at its present weights over its last `layers` layers (None: all of them).

    The network is put in evaluation mode: batch norm is linearised on its running statistics. Everything here is a
    pure function of (θ, w) and the input; the network's weights are never changed.
    """

    def __init__(self, net: Net, layers: int | None = 2) -> None:
        net.eval()
        self.net = net
        self.trunk, self.head = net.split(layers)
        self.written_out = net.supports_fused_paths and jvp_rules.supports(self.head)
        self.params: Vector = {
            name: p.detach() for name, p in self.head.named_parameters() if net.in_last_layers(name, layers)
        }
        self.buffers: Vector = dict(self.head.named_buffers())
        self.side_stream: torch.cuda.Stream | None = None  # for what need not wait for each other in training
        self.frozen: frozen.FrozenTrunk | None = None

    def zero(self) -> Vector:
        """w = 0, the point of contact: one tensor for each of the head's parameters."""
        return {name: torch.zeros_like(p) for name, p in self.params.items()}

    def freeze(self, dtype: torch.dtype) -> None:
        """Let the trunk compute in `dtype`, with what it was at this moment: for many images."""
        if self.net.supports_fused_paths and len(self.trunk) and frozen.supports(self.trunk):
            self.frozen = frozen.FrozenTrunk(self.trunk, dtype)

    @torch.no_grad()
    def features(self, x: Tensor) -> Tensor:
        """What enters the head: the frozen trunk's output for images `[n, c, h, w]`."""
        return self.trunk(x) if self.frozen is None else self.frozen(x).float()  # type: ignore[no-any-return]

    def head_at(self, params: Vector, features: Tensor) -> Tensor:
        """The head as a pure function of its parameters: logits `[n, classes]`."""
        return functional_call(self.head, {**params, **self.buffers}, (features,))  # type: ignore[no-any-return]

    def values(self, features: Tensor) -> Vector:
        """What `logits` need not compute again at these features, whatever w is: see `nets.dual`."""
        return jvp_rules.conv_outputs(self.head, features)

    def logits(self, w: Vector, features: Tensor, known: Vector | None = None) -> Tensor:
        """g(w; x) `[n, classes]` from the trunk's features, by one forward-mode Jacobian-vector product.

        Written out where the head's layers are known (`nets.dual`), by `torch.func.jvp` where they are not. `known` are
        the `values` at these features.
        """
        if self.written_out:
            side_stream = self.side_stream if torch.is_grad_enabled() else None
            value, along = jvp_rules.jvp(self.head, features, w, known, side_stream)
            return value + along
        with math_attention():
            value, along = jvp(lambda p: self.head_at(p, features), (self.params,), (w,))  # type: ignore[misc]
        return value + along  # type: ignore[no-any-return]

    def __call__(self, w: Vector, x: Tensor) -> Tensor:
        """g(w; x) `[n, classes]` of images `[n, c, h, w]`."""
        return self.logits(w, self.features(x))


def frozen_copy(net: nn.Module) -> nn.Module:
    """A copy of a network in evaluation mode whose weights nothing trains."""
    twin = copy.deepcopy(net).eval()
    for p in twin.parameters():
        p.requires_grad_(False)
        p.grad = None
    return twin
