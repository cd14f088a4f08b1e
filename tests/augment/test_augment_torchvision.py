"""Comparison with torchvision, if installed: policy tables, magnitudes, operations on PIL images."""

from __future__ import annotations

import pytest
import torch

from itl.augment import OPS
from itl.augment.policy import OPERATION_NAMES, POLICIES, SIGNED, magnitudes
from support.pillow_reference import from_pillow, sample_images, to_pillow

pytest.importorskip("torchvision")
from torchvision.transforms import InterpolationMode, autoaugment

SIZES = [(32, 32), (64, 64), (17, 29), (224, 160)]


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_policy_tables_equal_torchvision(name: str) -> None:
    theirs = autoaugment.AutoAugment(autoaugment.AutoAugmentPolicy(name)).policies
    assert POLICIES[name] == [tuple((op, p, level or 0) for op, p, level in steps) for steps in theirs]


@pytest.mark.parametrize(("height", "width"), SIZES)
def test_magnitudes_equal_torchvision(height: int, width: int) -> None:
    theirs = autoaugment.AutoAugment()._augmentation_space(10, (height, width))
    assert set(theirs) == set(OPERATION_NAMES) - {"Identity"}
    for name, (values, signed) in theirs.items():
        assert magnitudes(name, height, width).tolist() == values.double().expand(10).tolist()
        assert (name in SIGNED) == signed


@pytest.mark.parametrize(("height", "width"), SIZES)
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", OPS)
def test_operation_equals_torchvision_on_pil_images(name: str, channels: int, height: int, width: int) -> None:
    images = sample_images(channels, height, width)[::2]
    bins = magnitudes(name, height, width).tolist()
    for strength in [*bins, *(-b for b in bins)] if name in SIGNED else bins:
        got = OPS[name](images, torch.full((len(images),), strength, dtype=torch.float64))
        expected = [
            autoaugment._apply_op(to_pillow(x), name, strength, InterpolationMode.NEAREST, fill=None) for x in images
        ]
        assert torch.equal(got, torch.stack([from_pillow(image) for image in expected]))
