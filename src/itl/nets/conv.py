"""Convolutions that go beside the chain of a step, on a stream of their own: a weight's gradient, a derivative along w.

The chain of a backward pass is data gradients and norms; a weight's gradient is needed only at its end. With batches of
64 neither fills a GPU alone.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def convolve(conv: nn.Conv2d, x: Tensor) -> Tensor:
    """`conv(x)`; if the engine has set `conv.side_stream`, the weight's gradient is computed on that stream.

    The side stream is used only while `conv.weight` is `conv.trained_weight`: a weight that a loss substitutes (a
    virtual update, a forward-mode derivative) takes the plain path. `conv.forward_count` counts the forward passes of
    one loss. Autograd sums the gradients of a weight that was used more than once on the stream of the backward pass,
    which does not wait for the side stream, so such gradients are computed without it.
    """
    side_stream = getattr(conv, "side_stream", None)
    trained = side_stream is not None and conv.weight is conv.trained_weight and torch.is_grad_enabled()
    if not trained or x.dtype != conv.weight.dtype or conv.bias is not None:
        return conv(x)  # type: ignore[no-any-return]
    conv.forward_count += 1  # type: ignore[operator, assignment]
    return SplitBackwardConv.apply(x, conv.weight, conv, side_stream)  # type: ignore[no-any-return, no-untyped-call]


class SplitBackwardConv(torch.autograd.Function):
    """A convolution without bias, dilation or groups, whose two gradients are computed apart."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, conv: Any, side_stream: Any) -> Tensor:  # type: ignore[override]
        """`[n, outputs, h, w]`."""
        ctx.save_for_backward(x, weight)
        ctx.conv, ctx.side_stream = conv, side_stream
        return torch.conv2d(x, weight, None, conv.stride, conv.padding)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """The data's gradient here, the weight's on the other stream; who takes it waits for that stream."""
        x, weight = ctx.saved_tensors
        how = (ctx.conv.stride, ctx.conv.padding, (1, 1), False, (0, 0), 1)
        backward = torch.ops.aten.convolution_backward
        here = torch.cuda.current_stream(dy.device)
        other = ctx.side_stream if ctx.conv.forward_count == 1 else here
        if other != here:
            other.wait_stream(here)
        with torch.cuda.stream(other):
            dweight = backward(dy, x, weight, None, *how, (False, True, False))[1]
        if other != here:
            for tensor in (dy, x):
                tensor.record_stream(other)
            dweight.record_stream(here)
        dx = backward(dy, x, weight, None, *how, (True, False, False))[0] if ctx.needs_input_grad[0] else None
        return dx, dweight, None, None


class SideStreamConv(torch.autograd.Function):
    """A convolution of a constant with a moving weight, both ways on another stream."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, x: Tensor, weight: Tensor, shape: Any, side_stream: torch.cuda.Stream, ready: torch.cuda.Event
    ) -> Tensor:
        """`[n, outputs, h, w]`, begun once x was `ready`, whatever came after; the present stream waits for it."""
        ctx.save_for_backward(x, weight)
        ctx.shape, ctx.side_stream = shape, side_stream
        here = torch.cuda.current_stream(x.device)
        side_stream.wait_event(ready)
        with torch.cuda.stream(side_stream):
            out = F.conv2d(x, weight, None, *shape)
        here.wait_stream(side_stream)
        x.record_stream(side_stream)
        weight.record_stream(side_stream)
        out.record_stream(here)
        return out

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """The weight's gradient; the `WaitForStream` that it goes through waits for it."""
        x, weight = ctx.saved_tensors
        here = torch.cuda.current_stream(dy.device)
        ctx.side_stream.wait_stream(here)
        how = (*ctx.shape, (1, 1), False, (0, 0), 1, (False, True, False))
        with torch.cuda.stream(ctx.side_stream):
            dweight = torch.ops.aten.convolution_backward(dy, x, weight, None, *how)[1]
        dy.record_stream(ctx.side_stream)
        dweight.record_stream(here)
        return None, dweight, None, None, None


class WaitForStream(torch.autograd.Function):
    """Tensors as they are; their gradients are taken when the stream `side_stream` has them all."""

    @staticmethod
    def forward(ctx: Any, side_stream: torch.cuda.Stream, *tensors: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        """Views of the tensors."""
        ctx.side_stream = side_stream
        return tuple(t.view_as(t) for t in tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """The gradients, waited for."""
        torch.cuda.current_stream(grads[0].device).wait_stream(ctx.side_stream)
        return None, *grads
