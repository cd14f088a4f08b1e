"""A convolution whose weight's gradient is computed beside the backward pass, on a stream of its own.

The chain of a backward pass is data gradients and norms; a weight's gradient is needed only at its end. With batches of
64 neither fills a GPU alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass
class Aside:
    """Where the gradient of a convolution's weight is computed. `uses` counts the forwards of one loss.

    A weight used more than once has its gradients summed on the backward pass's own stream, which would not wait.
    """

    stream: torch.cuda.Stream
    uses: int = 0


def convolve(conv: nn.Conv2d, x: Tensor) -> Tensor:
    """`conv(x)`; where an engine has given it a stream (`aside`), with the weight's gradient on that stream."""
    aside: Aside | None = getattr(conv, "aside", None)
    if aside is None or not torch.is_grad_enabled() or x.dtype != conv.weight.dtype or conv.bias is not None:
        return conv(x)  # type: ignore[no-any-return]
    aside.uses += 1
    return Apart.apply(x, conv.weight, conv.stride, conv.padding, aside)  # type: ignore[no-any-return, no-untyped-call]


class Apart(torch.autograd.Function):
    """A convolution without bias, dilation or groups, whose two gradients are computed apart."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, stride: Any, padding: Any, aside: Aside) -> Tensor:  # type: ignore[override]
        """`[n, outputs, h, w]`."""
        ctx.save_for_backward(x, weight)
        ctx.how, ctx.aside = (stride, padding, (1, 1), False, (0, 0), 1), aside
        return torch.conv2d(x, weight, None, stride, padding)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """The data's gradient here, the weight's on the other stream; who takes it waits for that stream."""
        x, weight = ctx.saved_tensors
        backward = torch.ops.aten.convolution_backward
        here = torch.cuda.current_stream(dy.device)
        other = ctx.aside.stream if ctx.aside.uses == 1 else here
        if other != here:
            other.wait_stream(here)
        with torch.cuda.stream(other):
            dweight = backward(dy, x, weight, None, *ctx.how, (False, True, False))[1]
        if other != here:
            for tensor in (dy, x):
                tensor.record_stream(other)
            dweight.record_stream(here)
        dx = backward(dy, x, weight, None, *ctx.how, (True, False, False))[0] if ctx.needs_input_grad[0] else None
        return dx, dweight, None, None, None
