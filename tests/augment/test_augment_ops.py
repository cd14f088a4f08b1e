"""Batched AutoAugment operations equal Pillow's, pixel by pixel."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from itl.augment import OPS
from itl.augment.blend import _blend_table
from itl.augment.geometry import GEOMETRY, coefficients
from itl.augment.ops import geometric
from itl.augment.policy import SIGNED, magnitudes
from support.pillow_reference import from_pillow, pillow_op, sample_images, to_pillow

SHAPES = [(3, 32, 32), (1, 32, 32), (3, 17, 29), (1, 40, 8)]


def strengths(name: str, height: int, width: int) -> list[float]:
    """All ten bins with both signs, and values between bins."""
    bins = magnitudes(name, height, width).tolist()
    between = {"Posterize": [1.0, 2.0, 3.0], "Solarize": [0.5, 127.0, 127.5, 256.0], "Rotate": [0.1, 45.0, 90.0, 181.3]}
    bins += between.get(name, [0.0123, 0.29999, 0.7])
    return bins + [-m for m in bins] if name in SIGNED else bins


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", OPS)
def test_every_magnitude_equals_pillow(name: str, shape: tuple[int, int, int]) -> None:
    images = sample_images(*shape)
    # All magnitudes in one batch: a sample must not use its neighbor's.
    each = torch.tensor(strengths(name, *shape[1:]), dtype=torch.float64)
    batch, per_sample = images.repeat(len(each), 1, 1, 1), each.repeat_interleave(len(images))
    expected = torch.stack(
        [from_pillow(pillow_op(to_pillow(x), name, m)) for x, m in zip(batch, per_sample.tolist(), strict=True)]
    )
    got = OPS[name](batch, per_sample)
    assert got.dtype == torch.uint8
    assert torch.equal(got, expected)


@pytest.mark.parametrize("name", GEOMETRY)
def test_large_images_and_fill_equal_pillow(name: str) -> None:
    images = sample_images(3, 224, 160)[::5]
    for strength in strengths(name, 224, 160)[::3]:
        got = geometric(name, images, torch.full((len(images),), strength, dtype=torch.float64), fill=128)
        expected = torch.stack([from_pillow(pillow_op(to_pillow(x), name, strength, fill=128)) for x in images])
        assert torch.equal(got, expected)


@pytest.mark.parametrize("name", ["Equalize", "AutoContrast", "Contrast", "Sharpness"])
def test_image_statistics_of_large_images_equal_pillow(name: str) -> None:
    images = sample_images(3, 224, 160)
    got = OPS[name](images, torch.full((len(images),), 0.6, dtype=torch.float64))
    assert torch.equal(got, torch.stack([from_pillow(pillow_op(to_pillow(x), name, 0.6)) for x in images]))


def test_autocontrast_equals_pillow_for_all_extremes() -> None:
    # One row per (low, high): every level between them occurs, so the whole table is compared.
    ramps = [np.clip(np.arange(256), low, high) for low in range(0, 256, 5) for high in range(low, 256, 3)]
    images = torch.from_numpy(np.stack(ramps).astype(np.uint8)).view(-1, 1, 1, 256)
    got = OPS["AutoContrast"](images, torch.zeros(len(images), dtype=torch.float64))
    assert torch.equal(got, torch.stack([from_pillow(pillow_op(to_pillow(x), "AutoContrast", 0.0)) for x in images]))


def test_smoothing_rounds_like_pillow_for_every_sum() -> None:
    sums = torch.arange(13 * 255 + 1)
    assert torch.equal((sums * 2 + 13) // 26, ((sums * 2 + 13) * 40330) >> 20)
    assert int((sums * 2 + 13)[-1]) * 40330 < 2**31
    # No sum lies at a rounding boundary, so Pillow's float32 thirteenths cannot round to the other side.
    assert bool(((sums * 2 + 13) % 26 != 0).all())


def test_blend_is_float32_with_or_without_fused_multiply_add() -> None:
    # The two roundings a compiler may choose differ by one level in a few cases; the table must be one of them.
    image, degenerate = np.meshgrid(np.arange(256), np.arange(256))
    for magnitude in strengths("Color", 32, 32):
        factor = np.float32(1.0 + magnitude)
        exact = degenerate + np.float64(factor) * (image - degenerate)
        fused = np.clip(exact.astype(np.float32), 0, 255).astype(np.uint8)
        unfused = degenerate.astype(np.float32) + factor * (image - degenerate).astype(np.float32)
        table = _blend_table(1.0 + magnitude).numpy()
        assert np.array_equal(table, fused) or np.array_equal(table, np.clip(unfused, 0, 255).astype(np.uint8))


def test_color_leaves_grayscale_images_unchanged() -> None:
    images = sample_images(1, 20, 20)
    assert torch.equal(OPS["Color"](images, torch.full((len(images),), 0.9, dtype=torch.float64)), images)


@pytest.mark.parametrize("name", sorted(SIGNED))
def test_magnitude_zero_changes_nothing(name: str) -> None:
    images = sample_images(3, 24, 31)
    assert torch.equal(OPS[name](images, torch.zeros(len(images), dtype=torch.float64)), images)


def test_fixed_point_uses_16_bits_at_pixel_centers() -> None:
    fixed = coefficients("TranslateX", torch.tensor([2.9, -2.9], dtype=torch.float64), 32, 32)
    assert fixed.tolist() == [
        [65536, 0, -2 * 65536 + 32768, 0, 65536, 32768],
        [65536, 0, 2 * 65536 + 32768, 0, 65536, 32768],
    ]


@pytest.mark.parametrize("name", OPS)
def test_operation_keeps_its_input_and_accepts_strided_tensors(name: str) -> None:
    images = sample_images(3, 16, 12)
    before, strided = images.clone(), images.repeat_interleave(2, dim=3)[..., ::2]
    strength = torch.full((len(images),), 4.0 if name == "Posterize" else 0.3, dtype=torch.float64)
    assert torch.equal(OPS[name](strided, strength), OPS[name](images, strength))
    assert torch.equal(images, before)
