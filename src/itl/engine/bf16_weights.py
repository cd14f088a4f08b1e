"""bf16 copies of a network's weights for the forward and backward pass; the optimizer trains float32 master weights.

Autocast casts every weight and every gradient with a small kernel of its own, about fifty per step. Here all copies are
refreshed, and all gradients are converted, by one multi-tensor kernel each. The arithmetic is the same as autocast's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class BF16Weights:
    """bf16 copies of the convolution and linear weights of `net`."""

    def __init__(self, net: nn.Module) -> None:
        self.layers = [m for m in net.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
        self.masters: list[Tensor] = [layer.weight for layer in self.layers]
        self.copies = [master.detach().to(torch.bfloat16).requires_grad_() for master in self.masters]
        self.index = {id(master): k for k, master in enumerate(self.masters)}
        self.float_grads: list[Tensor] = []

    @contextmanager
    def use_bf16_weights(self, side_stream: torch.cuda.Stream | None = None) -> Iterator[None]:
        """Let the network compute with the bf16 copies.

        Args:
            side_stream: Stream for the gradients of the copies; None for the current stream.
        """
        for layer, copy in zip(self.layers, self.copies, strict=True):
            layer._parameters["weight"] = copy  # type: ignore[assignment]
            layer.side_stream, layer.trained_weight, layer.forward_count = side_stream, copy, 0  # type: ignore[assignment]
        try:
            yield
        finally:
            for layer, master in zip(self.layers, self.masters, strict=True):
                layer._parameters["weight"] = master  # type: ignore[assignment]
                layer.side_stream = layer.trained_weight = None  # type: ignore[assignment]

    def differentiable(self, leaves: list[Tensor]) -> list[Tensor]:
        """The tensors to differentiate with respect to: `leaves`, with each master replaced by its bf16 copy."""
        return [self.copies[self.index[id(leaf)]] if id(leaf) in self.index else leaf for leaf in leaves]

    def to_float(self, leaves: list[Tensor], grads: list[Tensor]) -> list[Tensor]:
        """The gradients `grads` of `leaves`, with those of the bf16 copies converted to float32."""
        self.float_grads = self.float_grads or [torch.empty_like(master) for master in self.masters]
        index = self.index
        narrow = [(index[id(leaf)], grad) for leaf, grad in zip(leaves, grads, strict=True) if id(leaf) in index]
        if narrow:
            torch._foreach_copy_([self.float_grads[k] for k, _ in narrow], [grad for _, grad in narrow])
        return [
            self.float_grads[index[id(leaf)]] if id(leaf) in index else grad
            for leaf, grad in zip(leaves, grads, strict=True)
        ]

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the current values of the masters."""
        torch._foreach_copy_([t.detach() for t in self.copies], [m.detach() for m in self.masters])
