"""Convolutions of few pixels with many channels as one product of matrices.

The last layers of a network have 4x4 pixels and 512 channels. In float32 cuDNN gives such a convolution of 32 images to
a few multiprocessors, each with a long sum; a product of matrices is cut along its sum too, and keeps all of them busy.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from itl.kernels import kernels_of, launching_on
from itl.nets.norm import fused_kernels

ROWS = 1024  # pixels of a result at most: with more of them, a convolution has enough to share out by itself
CHANNELS = 128  # at least: a long sum
BLOCK_R, BLOCK_C = 16, 128


def suits(conv: nn.Conv2d) -> bool:
    """Whether a convolution can be computed as a product, and has a long sum."""
    usual = conv.kernel_size == (3, 3) and conv.padding == (1, 1) and conv.stride in ((1, 1), (2, 2))
    return usual and min(conv.in_channels, conv.out_channels) >= CHANNELS


def fits(x: Tensor, conv: nn.Conv2d) -> bool:
    """Whether that is better for x (float32, channels-last, on CUDA): few pixels."""
    down, right = _taken(x, conv.stride[0])
    return suits(conv) and len(x) * down * right <= ROWS and fused_kernels(x, torch.float32) is not None


def _taken(x: Tensor, stride: int) -> tuple[int, int]:
    """How many pixels of an image are taken, down and to the right."""
    return -(-x.shape[2] // stride), -(-x.shape[3] // stride)


def turned(weight: Tensor) -> Tensor:
    """The weight `[o, c, 3, 3]` by which the gradient of a convolution's result is one of its input: `[c, o, 3, 3]`."""
    return weight.flip(2, 3).transpose(0, 1).contiguous(memory_format=torch.channels_last)


def product(x: Tensor, weight: Tensor, stride: int = 1) -> Tensor:
    """`conv2d(x, weight, None, stride, 1)` of channels-last tensors, `[n, o, h, w]` channels-last again."""
    matrix = weight.permute(0, 2, 3, 1).flatten(1)  # where its channels are last, as it lies in memory
    out = columns(x, stride) @ matrix.t()
    return out.view(len(x), *_taken(x, stride), -1).permute(0, 3, 1, 2)


def columns(x: Tensor, stride: int) -> Tensor:
    """The 3x3 pixels around each pixel of x `[n, c, h, w]`, or each second one, side by side, zero beyond the edge.

    `[n h w, 9 c]` for the pixels `h w` that are taken.
    """
    n, channels, height, width = x.shape
    down, right = _taken(x, stride)
    rows, block = n * down * right, min(BLOCK_C, 1 << (channels - 1).bit_length())
    out = x.new_empty((rows, 9 * channels))
    with launching_on(x.device):
        kernels_of("nets").columns_kernel[(-(-rows // BLOCK_R), 9, -(-channels // block))](
            x, out, rows, height, width, down, right, channels,
            STRIDE=stride, BLOCK_R=BLOCK_R, BLOCK_C=block, num_warps=4,
        )  # fmt: skip
    return out


class Product(torch.autograd.Function):
    """A convolution with a constant weight, both ways as a product."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, turned: Tensor) -> Tensor:  # type: ignore[override]
        """`[n, o, h, w]`."""
        ctx.save_for_backward(turned)
        return product(x, weight)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """The gradient of x."""
        (turned,) = ctx.saved_tensors
        return product(dy.contiguous(memory_format=torch.channels_last), turned), None, None
