"""Blends of an image with a degenerate image (black, mean gray, grayscale, smoothed), equal to Pillow's ImageEnhance.

Pillow blends in float32 and truncates. The last bit depends on whether its compiler fused multiplication and addition:
builds for ARM do, builds for x86-64 do not, and for AutoAugment's factors they differ by one level in up to 2 % of all
pairs of gray levels. No formula therefore matches Pillow everywhere. A blend of two bytes has only 65,536 cases, so the
installed Pillow computes a table for each factor and the device looks values up: exact for every build, integers only.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from itl.augment.host_to_device import send, send_constant
from itl.augment.policy import signed


@lru_cache(maxsize=256)
def _blend_table(factor: float) -> Tensor:
    """Pillow's blend(degenerate, image, factor) for all pairs of bytes: uint8 `[256 degenerate, 256 image]`."""
    levels = np.arange(256, dtype=np.uint8)
    degenerate = Image.fromarray(np.repeat(levels[:, None], 256, axis=1))
    image = Image.fromarray(np.repeat(levels[None], 256, axis=0))
    return torch.from_numpy(np.array(Image.blend(degenerate, image, factor)))


def _tables(magnitudes: np.ndarray) -> Tensor:
    """Tables for the factors 1 + magnitude: uint8 `[k, 256 degenerate, 256 image]`."""
    return torch.stack([_blend_table(1.0 + value) for value in magnitudes.tolist()])


@lru_cache(maxsize=16)
def _policy_tables(device: torch.device) -> tuple[np.ndarray, Tensor]:
    """The policies' magnitudes in ascending order `[k]`, and their tables on the device `[k, 256, 256]`."""
    values = signed("Color", 1, 1).numpy()
    return values, send_constant(_tables(values), device)


def blend_tables(magnitudes: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """Blend tables for the factors 1 + magnitude.

    Args:
        magnitudes: Host tensor `[n]`.
        device: Device of the tables.

    Returns:
        The tables (uint8 `[k, 256 degenerate, 256 image]`, on the device) and the index of each sample's table (int64
        `[n]`, on the host).
    """
    values, tables = _policy_tables(device)
    which = np.searchsorted(values, magnitudes.numpy()).clip(max=len(values) - 1)
    if (values[which] == magnitudes.numpy()).all():
        return tables, torch.from_numpy(which)
    unique, index = torch.unique(magnitudes, return_inverse=True)
    return send(_tables(unique.numpy()), device), index


def gray(images: Tensor) -> Tensor:
    """Luma as in Pillow's RGB-to-L conversion (16.16 fixed point): int32 `[n, 1, H, W]`; grayscale is unchanged."""
    if images.shape[1] == 1:
        return images.int()
    red, green, blue = torch.split(images.int(), 1, dim=1)
    luma = (red * 19595).add_(green, alpha=38470).add_(blue, alpha=7471)
    return luma.add_(0x8000).bitwise_right_shift_(16)


def smooth(images: Tensor) -> Tensor:
    """Pillow's SMOOTH filter: 3x3 mean with weight 5 at the center, border copied: int32 `[n, C, H, W]`.

    Pillow sums float32 thirteenths and rounds. A multiple of 1/13 is at least 1/26 away from the rounding threshold, so
    the integer round(total / 13) = (2 total + 13) // 26 gives the same result; 40330 / 2**20 replaces 1 / 26, which is
    exact up to the largest total, 13 * 255.
    """
    wide = images.int()
    rows = (wide[..., :-2] + wide[..., 1:-1]).add_(wide[..., 2:])
    total = (rows[..., :-2, :] + rows[..., 1:-1, :]).add_(rows[..., 2:, :]).add_(wide[..., 1:-1, 1:-1], alpha=4)
    wide[..., 1:-1, 1:-1] = total.mul_(2 * 40330).add_(13 * 40330).bitwise_right_shift_(20)
    return wide


def blend(degenerate: Tensor, images: Tensor, magnitudes: Tensor) -> Tensor:
    """Blend images (uint8 `[n, C, H, W]`) with `degenerate` (int32, broadcastable) by the factor 1 + magnitude."""
    tables, which = blend_tables(magnitudes, images.device)
    n = len(images)
    start = send((which * 65536).int(), images.device).view(n, 1, 1, 1)
    index = torch.add(images.int(), degenerate, alpha=256).add_(start).long()
    flat = tables.view(1, -1).expand(n, -1)
    return flat.gather(1, index.view(n, -1)).view_as(images)


def color(images: Tensor, magnitudes: Tensor) -> Tensor:
    """Saturation: blend with the grayscale image. A grayscale image does not change."""
    return blend(gray(images), images, magnitudes)


def sharpness(images: Tensor, magnitudes: Tensor) -> Tensor:
    """Sharpness: blend with the smoothed image."""
    return blend(smooth(images), images, magnitudes)
