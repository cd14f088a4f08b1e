"""Global average pooling and classifier with their derivative, in one kernel forward and one backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from itl.nets.norm import fused_kernels_for
from itl.nets.resnet import GlobalAvgPool
from itl.triton_support import device_guard, load_kernels

KERNELS = "itl.nets.pooled_classifier_kernels"
MAX_CLASSES, MAX_PIXELS = 256, 256
TILE = 4096  # weights that a program of the forward kernel holds at once; it holds twice as many pixel values
BLOCK_IMAGES, BLOCK_CHANNELS = 32, 16  # block size of the backward kernel


def is_fusable(module: nn.Module) -> bool:
    """Whether a module ends in global average pooling and a classifier that the kernels can compute together."""
    *_, before, last = (None, None, *module.children())
    pools = isinstance(before, nn.Sequential) and type(before[-1]) is GlobalAvgPool
    return pools and isinstance(last, nn.Linear) and last.bias is not None and last.out_features <= MAX_CLASSES


def is_supported(y: Tensor, dy: Tensor | None) -> bool:
    """Whether the kernels support a value and its derivative, `[n, c, h, w]` each."""
    few = y.dim() == 4 and y.shape[2] * y.shape[3] <= MAX_PIXELS
    return dy is not None and few and fused_kernels_for(y, torch.float32) is not None


class PooledClassifierJVP(torch.autograd.Function):
    """Logits of the pooled features, and their derivative along (dy, dweight, dbias)."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, y: Tensor, dy: Tensor, dweight: Tensor, dbias: Tensor, linear: nn.Linear
    ) -> tuple[Tensor, Tensor]:
        """Value and derivative, `[n, classes]` each, for `y` and `dy`, `[n, c, h, w]` in channels-last layout."""
        n, channels, height, width = y.shape
        classes, weight, dy = linear.out_features, linear.weight.detach(), _channels_last(dy)
        means = y.new_empty((n, channels))
        value, derivative = y.new_empty((n, classes)), y.new_empty((n, classes))
        block_k, pixels = _next_power_of_two(classes), _next_power_of_two(height * width)
        blocks = {"PIXELS": pixels, "BLOCK_C": min(TILE // block_k, 2 * TILE // pixels, 256), "BLOCK_K": block_k}
        with device_guard(y.device):
            load_kernels(KERNELS).pooled_classifier_kernel[(n,)](
                y, dy, weight, linear.bias.detach(), dweight, dbias, means, value, derivative,
                channels, height * width, classes, **blocks, num_warps=8,
            )  # fmt: skip
        ctx.save_for_backward(weight, means)
        ctx.shape = y.shape
        ctx.mark_non_differentiable(value)
        ctx.set_materialize_grads(False)
        return value, derivative

    @staticmethod
    def backward(ctx: Any, _: None, g: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """Gradients of dy, dweight and dbias."""
        weight, means = ctx.saved_tensors
        (n, channels), classes = means.shape, len(weight)
        ddy = torch.empty(ctx.shape, device=weight.device, memory_format=torch.channels_last)
        dweight, dbias = torch.empty_like(weight), weight.new_empty(classes)
        block_k = max(16, _next_power_of_two(classes))
        precision = "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"
        with device_guard(weight.device):
            load_kernels(KERNELS).pooled_classifier_backward_kernel[(-(-channels // BLOCK_CHANNELS),)](
                g.contiguous(), weight, means, ddy, dweight, dbias, channels, n, ddy[0, 0].numel(), classes,
                PRECISION=precision, BLOCK_N=BLOCK_IMAGES, BLOCK_C=BLOCK_CHANNELS, BLOCK_K=block_k, num_warps=4,
            )  # fmt: skip
        return None, ddy, dweight, dbias, None


def _channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def _next_power_of_two(size: int) -> int:
    """The smallest power of two that is at least `size`."""
    return 1 << (size - 1).bit_length()
