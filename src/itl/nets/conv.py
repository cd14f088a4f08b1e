"""A convolution whose weight's gradient is computed beside the backward pass, on a stream of its own.

The chain of a backward pass is data gradients and norms; a weight's gradient is needed only at its end. With batches of
64 neither fills a GPU alone.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

THICK = 8  # channels that tensor cores want at least: an image's three are filled up with zeros


def convolve(conv: nn.Conv2d, x: Tensor) -> Tensor:
    """`conv(x)`; where an engine has given it a stream (`beside`), with the weight's gradient on that stream."""
    beside = getattr(conv, "beside", None)
    if beside is None or not torch.is_grad_enabled() or conv.bias is not None:
        return conv(x)  # type: ignore[no-any-return]
    return Beside.apply(x.to(conv.weight.dtype), conv.weight, conv.stride, conv.padding, beside)  # type: ignore[no-any-return, no-untyped-call]


class Beside(torch.autograd.Function):
    """A convolution without bias, dilation or groups."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, stride: Any, padding: Any, beside: Any) -> Tensor:  # type: ignore[override]
        """`[n, outputs, h, w]`."""
        ctx.channels = x.shape[1]
        if ctx.channels < THICK and not ctx.needs_input_grad[0]:
            x, weight = (F.pad(tensor, (0, 0, 0, 0, 0, THICK - ctx.channels)) for tensor in (x, weight))
        ctx.save_for_backward(x, weight)
        ctx.how, ctx.beside = (stride, padding, (1, 1), False, (0, 0), 1), beside
        return torch.conv2d(x, weight, None, stride, padding)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """The data's gradient here, the weight's on the other stream; who takes it waits for that stream."""
        x, weight = ctx.saved_tensors
        backward = torch.ops.aten.convolution_backward
        here, beside = torch.cuda.current_stream(dy.device), ctx.beside
        beside.wait_stream(here)
        with torch.cuda.stream(beside):
            dweight = backward(dy, x, weight, None, *ctx.how, (False, True, False))[1]
            if dweight.shape[1] != ctx.channels:
                dweight = dweight[:, : ctx.channels].contiguous(memory_format=torch.channels_last)
        for tensor in (dy, x):
            tensor.record_stream(beside)
        dweight.record_stream(here)
        dx = backward(dy, x, weight, None, *ctx.how, (True, False, False))[0] if ctx.needs_input_grad[0] else None
        return dx, dweight, None, None, None
