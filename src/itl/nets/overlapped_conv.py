"""Convolutions that compute gradients of weights, or derivatives along them, on a second CUDA stream.

Data gradients and norms depend on each other, layer by layer; the gradients of the weights are needed only at the end
of the backward pass. With batches of 64 neither of them fills a GPU, so they run concurrently.
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
    """A convolution (no bias, dilation or groups) that computes the weight's gradient on another stream."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, conv: Any, side_stream: Any) -> Tensor:  # type: ignore[override]
        """`[n, outputs, h, w]`."""
        ctx.save_for_backward(x, weight)
        ctx.conv, ctx.side_stream = conv, side_stream
        return torch.conv2d(x, weight, None, conv.stride, conv.padding)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """Gradients of `x` on the current stream and of `weight` on the side stream, which the engine joins later."""
        x, weight = ctx.saved_tensors
        geometry = (ctx.conv.stride, ctx.conv.padding, (1, 1), False, (0, 0), 1)
        backward = torch.ops.aten.convolution_backward
        current = torch.cuda.current_stream(dy.device)
        other = ctx.side_stream if ctx.conv.forward_count == 1 else current
        if other != current:
            other.wait_stream(current)
        with torch.cuda.stream(other):
            dweight = backward(dy, x, weight, None, *geometry, (False, True, False))[1]
        if other != current:
            for tensor in (dy, x):
                tensor.record_stream(other)
            dweight.record_stream(current)
        dx = backward(dy, x, weight, None, *geometry, (True, False, False))[0] if ctx.needs_input_grad[0] else None
        return dx, dweight, None, None


class SideStreamConv(torch.autograd.Function):
    """A convolution of a constant input with a trained weight; forward and backward run on another stream."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, x: Tensor, weight: Tensor, shape: Any, side_stream: torch.cuda.Stream, ready: torch.cuda.Event
    ) -> Tensor:
        """`[n, outputs, h, w]`, computed as soon as `x` is `ready`; the current stream waits for the result."""
        ctx.save_for_backward(x, weight)
        ctx.shape, ctx.side_stream = shape, side_stream
        current = torch.cuda.current_stream(x.device)
        side_stream.wait_event(ready)
        with torch.cuda.stream(side_stream):
            out = F.conv2d(x, weight, None, *shape)
        current.wait_stream(side_stream)
        x.record_stream(side_stream)
        weight.record_stream(side_stream)
        out.record_stream(current)
        return out

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """Gradient of the weight; it passes through `WaitForStream`, which waits for it."""
        x, weight = ctx.saved_tensors
        current = torch.cuda.current_stream(dy.device)
        ctx.side_stream.wait_stream(current)
        geometry = (*ctx.shape, (1, 1), False, (0, 0), 1, (False, True, False))
        with torch.cuda.stream(ctx.side_stream):
            dweight = torch.ops.aten.convolution_backward(dy, x, weight, None, *geometry)[1]
        dy.record_stream(ctx.side_stream)
        dweight.record_stream(current)
        return None, dweight, None, None, None


class WaitForStream(torch.autograd.Function):
    """The identity, whose backward pass makes the current stream wait for `side_stream`."""

    @staticmethod
    def forward(ctx: Any, side_stream: torch.cuda.Stream, *tensors: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        """Views of the tensors."""
        ctx.side_stream = side_stream
        return tuple(t.view_as(t) for t in tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """The gradients, once the side stream has computed them."""
        torch.cuda.current_stream(grads[0].device).wait_stream(ctx.side_stream)
        return None, *grads
