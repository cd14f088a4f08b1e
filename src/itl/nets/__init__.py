"""Networks: the ResNet family, with one surface: features, classifier, redraw the classifier, the last k layers."""

from __future__ import annotations

import torch

from itl.errors import UserError, unknown
from itl.nets import frozen, jvp_rules
from itl.nets.adapter import ModuleAdapter, math_attention, with_new_classifier
from itl.nets.base import Net
from itl.nets.init import initialize
from itl.nets.norm import forward_each
from itl.nets.resnet import BasicBlock, Bottleneck, ResNet

__all__ = [
    "FAMILY",
    "ModuleAdapter",
    "Net",
    "ResNet",
    "build",
    "forward_each",
    "frozen",
    "initialize",
    "jvp_rules",
    "math_attention",
    "names",
    "with_new_classifier",
]

# name: (block, blocks in each layer, width of the first layer)
FAMILY: dict[str, tuple[type[BasicBlock] | type[Bottleneck], tuple[int, ...], int]] = {
    "resnet18": (BasicBlock, (2, 2, 2, 2), 64),
    "resnet34": (BasicBlock, (3, 4, 6, 3), 64),
    "resnet50": (Bottleneck, (3, 4, 6, 3), 64),
    "resnet10": (BasicBlock, (1, 1, 1, 1), 64),
    "resnet8": (BasicBlock, (1, 1, 1), 16),
}


def names() -> list[str]:
    """The networks that can be built."""
    return list(FAMILY)


def build(
    name: str,
    classes: int,
    *,
    channels: int = 3,
    width: int | None = None,
    strided: bool = False,
    generator: torch.Generator | None = None,
) -> ResNet:
    """A network of the family with PyTorch's default initialisation, drawn from `generator` where one is given.

    `width` is the number of filters of the first layer (default: the member's own); `strided` puts the 7x7 stride-2
    stem with max-pool in front, for images of about 96 pixels and more.
    """
    if name not in FAMILY:
        raise unknown("network", name, FAMILY)
    if width is not None and width < 1:
        raise UserError(f"a network's width must be at least 1, not {width}")
    block, blocks, usual = FAMILY[name]
    net = ResNet(block, blocks, width or usual, classes, channels, strided)
    if generator is not None:
        initialize(net, generator)
    return net
