"""The ResNet family of the benchmark (He et al., 2016): 3x3 stem, no max-pooling, convolutions without bias."""

from __future__ import annotations

from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from itl.nets.base import Net
from itl.nets.norm import fork, norm
from itl.nets.overlapped_conv import convolve
from itl.nets.registry import Backbone


def conv3x3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    """A 3x3 convolution without bias."""
    return nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)


class Shortcut(nn.Module):
    """The identity, or a 1x1 convolution and batch norm if the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.changes = stride != 1 or inputs != outputs
        if self.changes:
            self.conv, self.bn = nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        """`[n, inputs, h, w]` to `[n, outputs, h/stride, w/stride]`."""
        return norm(self.bn, convolve(self.conv, x), relu=False) if self.changes else x


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut (ResNet-18 and -34)."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv3x3(inputs, width, stride), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = conv3x3(width, width), nn.BatchNorm2d(width)
        self.shortcut = Shortcut(inputs, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """`[n, inputs, h, w]` to `[n, width, h/stride, w/stride]`."""
        x, again = fork(x)
        out = norm(self.bn1, convolve(self.conv1, x))
        return norm(self.bn2, convolve(self.conv2, out), self.shortcut(again))


class Bottleneck(nn.Module):
    """Convolutions of 1x1, 3x3 and 1x1, the last with four times the width, and a shortcut (ResNet-50)."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * self.expansion
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = conv3x3(width, width, stride), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        self.shortcut = Shortcut(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        """`[n, inputs, h, w]` to `[n, 4 width, h/stride, w/stride]`."""
        x, again = fork(x)
        out = norm(self.bn1, convolve(self.conv1, x))
        out = norm(self.bn2, convolve(self.conv2, out))
        return norm(self.bn3, convolve(self.conv3, out), self.shortcut(again))


class Stem(nn.Module):
    """The first convolution: 3x3 with stride 1, or, if `strided`, 7x7 with stride 2 and max-pooling."""

    def __init__(self, channels: int, width: int, strided: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, width, 7, 2, 3, bias=False) if strided else conv3x3(channels, width)
        self.bn = nn.BatchNorm2d(width)
        self.strided = strided

    def forward(self, x: Tensor) -> Tensor:
        """`[n, channels, h, w]` to `[n, width, h, w]`, or to `[n, width, h/4, w/4]` if strided."""
        x = norm(self.bn, convolve(self.conv, x))
        return F.max_pool2d(x, 3, 2, 1) if self.strided else x


class GlobalAvgPool(nn.Module):
    """Global average pooling: `[n, c, h, w]` to `[n, c]`."""

    def forward(self, x: Tensor) -> Tensor:
        """The mean over height and width."""
        return x.mean((2, 3))


class ResNet(Net):
    """A residual network: stem, several layers of blocks, global average pooling and classifier.

    Args:
        block: Class of the blocks.
        blocks: Number of blocks in each layer. Every layer but the first halves height and width.
        width: Filters of the first layer; each further layer doubles them.
        classes: Outputs of the classifier.
        channels: Channels of the images.
        strided: Use the stem for large images, see `Stem`.
    """

    supports_fused_paths = True
    capturable = True

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        blocks: tuple[int, ...],
        width: int,
        classes: int,
        channels: int,
        strided: bool,
    ) -> None:
        super().__init__()
        self.stem = Stem(channels, width, strided)
        inputs, names = width, ["stem"]
        for k, count in enumerate(blocks):
            outputs = width * 2**k
            strides = [1 if k == 0 else 2] + [1] * (count - 1)
            layer = nn.Sequential()
            for stride in strides:
                layer.append(block(inputs, outputs, stride))
                inputs = outputs * block.expansion
            if k == len(blocks) - 1:
                layer.append(GlobalAvgPool())
            names.append(f"layer{k + 1}")
            self.add_module(names[-1], layer)
        self.classifier = nn.Linear(inputs, classes)
        self.layers = (*names, "classifier")


def _build(
    block: type[BasicBlock] | type[Bottleneck],
    blocks: tuple[int, ...],
    usual_width: int,
    *,
    classes: int,
    channels: int,
    width: int | None,
    strided: bool,
) -> ResNet:
    return ResNet(block, blocks, width or usual_width, classes, channels, strided)


PAPER = "He, Zhang, Ren, Sun: Deep Residual Learning for Image Recognition, CVPR 2016"
BACKBONES = (
    Backbone("resnet18", "18 layers; the benchmark's network", partial(_build, BasicBlock, (2, 2, 2, 2), 64), PAPER),
    Backbone("resnet34", "34 layers", partial(_build, BasicBlock, (3, 4, 6, 3), 64), PAPER),
    Backbone("resnet50", "50 layers, bottleneck blocks", partial(_build, Bottleneck, (3, 4, 6, 3), 64), PAPER),
    Backbone("resnet10", "10 layers, half of resnet18's blocks", partial(_build, BasicBlock, (1, 1, 1, 1), 64), PAPER),
    Backbone("resnet8", "8 layers, 16 filters: fast on a CPU", partial(_build, BasicBlock, (1, 1, 1), 16), PAPER),
)
