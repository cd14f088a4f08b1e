"""bf16 copies of a network's weights, which a step computes with, while the float32 masters are what it trains.

Autocast casts every weight forward and every gradient back, one small kernel each: some fifty a step. A shadow is
refreshed, and its gradients are widened, in one multi-tensor kernel each. The arithmetic is autocast's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class BF16Weights:
    """The bf16 twins of the convolution and linear weights of `net`."""

    def __init__(self, net: nn.Module) -> None:
        self.layers = [m for m in net.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
        self.masters: list[Tensor] = [layer.weight for layer in self.layers]
        self.twins = [master.detach().to(torch.bfloat16).requires_grad_() for master in self.masters]
        self.place = {id(master): k for k, master in enumerate(self.masters)}
        self.wide: list[Tensor] = []

    @contextmanager
    def worn(self, beside: torch.cuda.Stream | None = None) -> Iterator[None]:
        """Within, the network computes with the twins, whose gradients come on the stream `beside`, if there is one."""
        for layer, twin in zip(self.layers, self.twins, strict=True):
            layer._parameters["weight"] = twin  # type: ignore[assignment]
            layer.side_stream, layer.trained_weight, layer.forward_count = beside, twin, 0  # type: ignore[assignment]
        try:
            yield
        finally:
            for layer, master in zip(self.layers, self.masters, strict=True):
                layer._parameters["weight"] = master  # type: ignore[assignment]
                layer.side_stream = layer.trained_weight = None  # type: ignore[assignment]

    def stand_in(self, leaves: list[Tensor]) -> list[Tensor]:
        """The tensors to differentiate by: each master's twin in its place."""
        return [self.twins[self.place[id(leaf)]] if id(leaf) in self.place else leaf for leaf in leaves]

    def widen(self, leaves: list[Tensor], grads: list[Tensor]) -> list[Tensor]:
        """The same gradients, the twins' among them as float32."""
        self.wide = self.wide or [torch.empty_like(master) for master in self.masters]
        place = self.place
        narrow = [(place[id(leaf)], grad) for leaf, grad in zip(leaves, grads, strict=True) if id(leaf) in place]
        if narrow:
            torch._foreach_copy_([self.wide[k] for k, _ in narrow], [grad for _, grad in narrow])
        return [
            self.wide[place[id(leaf)]] if id(leaf) in place else grad for leaf, grad in zip(leaves, grads, strict=True)
        ]

    @torch.no_grad()
    def refresh(self) -> None:
        """Bring the twins to the masters' present values."""
        torch._foreach_copy_([t.detach() for t in self.twins], [m.detach() for m in self.masters])
