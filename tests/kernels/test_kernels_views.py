"""The augmentation kernel is bit-equal to the separate operations, which are compared with Pillow."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
from torch import Tensor

from itl.augment import Augment, Draws, fused
from itl.augment.policy import BINS, OPERATION_NAMES, SIGNED
from support.pillow_reference import sample_images

SIDES = [(32, 32), (64, 64), (28, 28), (8, 8), (5, 2), (100, 90)]
SHAPES = [(channels, *sides, fill) for channels in (1, 3) for sides in SIDES for fill in (0, 200)]
FEW = [(3, 8, 8, 200), (1, 5, 2, 0)]  # enough for an interpreter


@pytest.mark.parametrize(("channels", "height", "width", "fill"), SHAPES if torch.cuda.is_available() else FEW)
def test_every_operation_at_every_level_in_both_steps_is_bit_equal(
    channels: int, height: int, width: int, fill: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One kernel for small images.

    The interpreter runs only the extreme levels and the middle one: on color images in pairs, on gray ones alone.
    """
    if device.type == "cuda":
        steps = torch.cat([alone(range(1 - BINS, BINS)), in_pairs(range(1 - BINS, BINS))])
    else:
        steps = (in_pairs if channels == 3 else alone)((1 - BINS, 0, BINS - 1))
    some = sample_images(channels, height, width)
    images = some[torch.arange(len(steps)) % len(some)]
    n = len(images)
    shift = torch.arange(2 * n).view(n, 2) % 9
    draws = Draws(shift, torch.arange(n) % 3 == 0, steps[:, :2], steps[:, 2:])
    augment = Augment(policy="cifar10", fill=fill)
    views = augment(images.to(device), draws).cpu()
    monkeypatch.setattr(fused, "fits", lambda images, steps: False)
    assert torch.equal(views, augment(images, draws))


def each_level(levels: Iterable[int]) -> list[tuple[int, int]]:
    """Each operation at each of the levels that it has."""
    return [(op, level) for op, name in enumerate(OPERATION_NAMES) for level in levels if level >= 0 or name in SIGNED]


def alone(levels: Iterable[int]) -> Tensor:
    """Operations and levels of two steps, int64 `[n, 4]`: each operation in both steps, with the first in the other."""
    pairs = each_level(levels)
    return torch.tensor([(op, 0, level, 0) for op, level in pairs] + [(0, op, 0, level) for op, level in pairs])


def in_pairs(levels: Iterable[int]) -> Tensor:
    """Operations and levels of two steps, int64 `[n, 4]`: each operation in both steps, with another in the other."""
    pairs = each_level(levels)
    return torch.tensor([(a, b, i, j) for (a, i), (b, j) in zip(pairs, pairs[::-1], strict=True)])
