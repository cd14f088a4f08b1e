"""Fast inference through frozen layers of the ResNet family, by folding batch norms into convolutions.

In evaluation mode a batch norm is a scale and a shift. The scale is folded into the convolution's weight. The shift,
the residual sum and the ReLU are computed by cuDNN together with the convolution (`USE_CUDNN_FUSION`) or by one kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from itl.nets.norm import apply_norm, fused_kernels_for, running_stats
from itl.nets.resnet import BasicBlock, Bottleneck, GlobalAvgPool, Stem

USE_CUDNN_FUSION = True
Layer = Callable[[Tensor], Tensor]


def supports(module: nn.Module) -> bool:
    """Whether `FoldedTrunk` can compute every layer of `module`."""
    return all(type(layer) in FOLD_FUNCTIONS for layer in _flatten(module))


class FoldedTrunk:
    """A snapshot of a module's weights and statistics that computes it in evaluation mode, in `dtype`."""

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        self.dtype = dtype
        with torch.no_grad():
            self.layers = [FOLD_FUNCTIONS[type(layer)](layer, dtype) for layer in _flatten(module)]

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """The module's output for `[n, c, h, w]`, in `dtype`."""
        x = x.to(self.dtype)
        for layer in self.layers:
            x = layer(x)
        return x


@dataclass(frozen=True)
class FoldedConv:
    """A convolution and the batch norm after it.

    Attributes:
        weight: `[o, i, k, k]`.
        bias: float32 `[o]`.
        cast_bias: `bias` in the weight's precision.
        geometry: Stride and padding.
    """

    weight: Tensor
    bias: Tensor
    cast_bias: Tensor
    geometry: tuple[Any, Any]

    def convolve(self, x: Tensor) -> Tensor:
        """The convolution without its bias."""
        return F.conv2d(x, self.weight, None, *self.geometry)

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """relu(convolution + bias + residual), `[n, o, h, w]`."""
        if fusable_by_cudnn(x, self.weight):
            geometry = (*self.geometry, (1, 1), 1)
            if residual is None:
                return torch.cudnn_convolution_relu(x, self.weight, self.cast_bias, *geometry)
            return torch.cudnn_convolution_add_relu(x, self.weight, residual, 1.0, self.cast_bias, *geometry)
        y = self.convolve(x)
        if fused_kernels_for(y, torch.bfloat16, torch.float32) is not None:
            zero, one = torch.zeros_like(self.bias), torch.ones_like(self.bias)
            # A batch norm that only adds its bias.
            return apply_norm(y, residual, (zero, one, one, self.bias), relu=True)
        y = y + self.cast_bias.view(-1, 1, 1)
        return F.relu(y if residual is None else y + residual)


def fusable_by_cudnn(x: Tensor, weight: Tensor) -> bool:
    """Whether cuDNN can fuse convolution, sum and ReLU: in bf16, if the number of channels is a multiple of 8."""
    available = USE_CUDNN_FUSION and x.is_cuda and torch.version.hip is None
    return available and x.dtype == torch.bfloat16 and weight.shape[0] % 8 == 0


def fold(conv: nn.Conv2d, bn: nn.BatchNorm2d, dtype: torch.dtype, extra_bias: Tensor | None = None) -> FoldedConv:
    """Fold a batch norm in evaluation mode into its convolution; `extra_bias` `[o]` is added to the bias."""
    mean, var, scale, bias = running_stats(bn)
    scale = scale * (var + bn.eps).rsqrt()
    bias = bias - mean * scale
    bias = bias if extra_bias is None else bias + extra_bias
    weight = torch.empty_like(conv.weight, dtype=dtype).copy_(conv.weight * scale.view(-1, 1, 1, 1))
    return FoldedConv(weight, bias, bias.to(dtype), (conv.stride, conv.padding))


def _flatten(module: nn.Module) -> list[nn.Module]:
    if type(module) is not nn.Sequential:
        return [module]
    return [layer for child in module.children() for layer in _flatten(child)]


def _stem(stem: Any, dtype: torch.dtype) -> Layer:
    folded = fold(stem.conv, stem.bn, dtype)
    return (lambda x: F.max_pool2d(folded(x), 3, 2, 1)) if stem.strided else folded


def _block(block: Any, dtype: torch.dtype) -> Layer:
    """A residual block; the last convolution also adds the shortcut's bias."""
    short = fold(block.shortcut.conv, block.shortcut.bn, dtype) if block.shortcut.changes else None
    extra_bias = None if short is None else short.bias
    conv1 = fold(block.conv1, block.bn1, dtype)
    if isinstance(block, BasicBlock):
        first, last = [conv1], fold(block.conv2, block.bn2, dtype, extra_bias)
    else:
        first = [conv1, fold(block.conv2, block.bn2, dtype)]
        last = fold(block.conv3, block.bn3, dtype, extra_bias)

    def forward(x: Tensor) -> Tensor:
        out = x
        for folded in first:
            out = folded(out)
        return last(out, x if short is None else short.convolve(x))

    return forward


FOLD_FUNCTIONS: dict[type[nn.Module], Callable[[Any, torch.dtype], Layer]] = {
    Stem: _stem,
    BasicBlock: _block,
    Bottleneck: _block,
    GlobalAvgPool: lambda pool, _: pool,
}
