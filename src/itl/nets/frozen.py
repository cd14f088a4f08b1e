"""Frozen layers of the ResNet family, to be asked about many images: what does not depend on them is computed once.

In evaluation mode a norm multiplies and adds. Its convolution's weight takes over the first; the sum and the ReLU are
part of the convolution, where cuDNN does all of it (`USE_CUDNN_FUSION`), or one kernel over its output.
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
    """Whether every layer of `module` is one of those known here."""
    return all(type(layer) in KNOWN for layer in _flat(module))


class FrozenTrunk:
    """A module of the family at its present weights and statistics, in evaluation mode, computing in `dtype`."""

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        self.dtype = dtype
        with torch.no_grad():
            self.layers = [KNOWN[type(layer)](layer, dtype) for layer in _flat(module)]

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """The module's output for `[n, c, h, w]`, in `dtype`."""
        x = x.to(self.dtype)
        for layer in self.layers:
            x = layer(x)
        return x


@dataclass(frozen=True)
class FoldedConv:
    """A convolution and the norm behind it. `weight` is `[o, i, k, k]`, `bias` float32 `[o]`, `narrow` the same in the
    weight's precision.
    """

    weight: Tensor
    bias: Tensor
    narrow: Tensor
    how: tuple[Any, Any]  # stride, padding

    def alone(self, x: Tensor) -> Tensor:
        """The convolution without its bias."""
        return F.conv2d(x, self.weight, None, *self.how)

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """relu(convolution + bias + residual), `[n, o, h, w]`."""
        if fusable_by_cudnn(x, self.weight):
            how = (*self.how, (1, 1), 1)
            if residual is None:
                return torch.cudnn_convolution_relu(x, self.weight, self.narrow, *how)
            return torch.cudnn_convolution_add_relu(x, self.weight, residual, 1.0, self.narrow, *how)
        y = self.alone(x)
        if fused_kernels_for(y, torch.bfloat16, torch.float32) is not None:
            zero, one = torch.zeros_like(self.bias), torch.ones_like(self.bias)
            return apply_norm(y, residual, (zero, one, one, self.bias), relu=True)  # a norm that only adds its bias
        y = y + self.narrow.view(-1, 1, 1)
        return F.relu(y if residual is None else y + residual)


def fusable_by_cudnn(x: Tensor, weight: Tensor) -> bool:
    """Whether cuDNN computes convolution, sum and ReLU at once: it does in bf16, for channels by eights."""
    available = USE_CUDNN_FUSION and x.is_cuda and torch.version.hip is None
    return available and x.dtype == torch.bfloat16 and weight.shape[0] % 8 == 0


def fold(conv: nn.Conv2d, bn: nn.BatchNorm2d, dtype: torch.dtype, more: Tensor | None = None) -> FoldedConv:
    """The convolution and its norm in evaluation mode; `more` `[o]` is added to the bias."""
    mean, var, scale, bias = running_stats(bn)
    scale = scale * (var + bn.eps).rsqrt()
    bias = bias - mean * scale
    bias = bias if more is None else bias + more
    weight = torch.empty_like(conv.weight, dtype=dtype).copy_(conv.weight * scale.view(-1, 1, 1, 1))
    return FoldedConv(weight, bias, bias.to(dtype), (conv.stride, conv.padding))


def _flat(module: nn.Module) -> list[nn.Module]:
    if type(module) is not nn.Sequential:
        return [module]
    return [layer for child in module.children() for layer in _flat(child)]


def _stem(stem: Any, dtype: torch.dtype) -> Layer:
    folded = fold(stem.conv, stem.bn, dtype)
    return (lambda x: F.max_pool2d(folded(x), 3, 2, 1)) if stem.strided else folded


def _block(block: Any, dtype: torch.dtype) -> Layer:
    """The shortcut's bias is added with the last convolution's."""
    short = fold(block.shortcut.conv, block.shortcut.bn, dtype) if block.shortcut.changes else None
    more = None if short is None else short.bias
    one = fold(block.conv1, block.bn1, dtype)
    if isinstance(block, BasicBlock):
        first, last = [one], fold(block.conv2, block.bn2, dtype, more)
    else:
        first, last = [one, fold(block.conv2, block.bn2, dtype)], fold(block.conv3, block.bn3, dtype, more)

    def through(x: Tensor) -> Tensor:
        out = x
        for folded in first:
            out = folded(out)
        return last(out, x if short is None else short.alone(x))

    return through


KNOWN: dict[type[nn.Module], Callable[[Any, torch.dtype], Layer]] = {
    Stem: _stem,
    BasicBlock: _block,
    Bottleneck: _block,
    GlobalAvgPool: lambda pool, _: pool,
}
