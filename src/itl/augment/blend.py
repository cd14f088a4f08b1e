"""Blends between an image and its degenerate (black, grey mean, grey picture, smoothed), as Pillow's ImageEnhance.

Pillow blends in float32 and drops the fraction. Whether its compiler fused the multiplication with the addition decides
the last bit: builds for ARM do, builds for x86-64 do not, and for AutoAugment's factors they differ in up to 2% of all
pairs of grey levels, by one level. So there is no formula that is Pillow's everywhere. A blend of two bytes has only
65,536 cases, so the installed Pillow tabulates them once a factor, and the device looks them up: exact on every build,
and integers only.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from itl.augment.device import lasting, send
from itl.augment.policy import signed


@lru_cache(maxsize=256)
def _blend_table(factor: float) -> Tensor:
    """Pillow's blend(degenerate, image, factor) of all bytes: uint8 [256 degenerate, 256 image]."""
    levels = np.arange(256, dtype=np.uint8)
    degenerate = Image.fromarray(np.repeat(levels[:, None], 256, axis=1))
    image = Image.fromarray(np.repeat(levels[None], 256, axis=0))
    return torch.from_numpy(np.array(Image.blend(degenerate, image, factor)))


def _tables(magnitudes: np.ndarray) -> Tensor:
    """Those of the factors 1 + magnitude: uint8 [k, 256 degenerate, 256 image]."""
    return torch.stack([_blend_table(1.0 + value) for value in magnitudes.tolist()])


@lru_cache(maxsize=16)
def _usual(device: torch.device) -> tuple[np.ndarray, Tensor]:
    """The policies' magnitudes in order `[k]`, and the tables of their factors on the device `[k, 256, 256]`."""
    values = signed("Color", 1, 1).numpy()
    return values, lasting(_tables(values), device)


def blend_tables(magnitudes: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """The tables of the factors 1 + magnitude (host [n]) and which of them each sample uses.

    The tables are on the device, uint8 [k, 256 degenerate, 256 image]; the others stay on the host, int64 [n].
    """
    values, tables = _usual(device)
    which = np.searchsorted(values, magnitudes.numpy()).clip(max=len(values) - 1)
    if (values[which] == magnitudes.numpy()).all():
        return tables, torch.from_numpy(which)
    others, places = torch.unique(magnitudes, return_inverse=True)
    return send(_tables(others.numpy()), device), places


def grey(images: Tensor) -> Tensor:
    """Luma as Pillow converts RGB to L, in 16.16: int32 [n, 1, H, W]; one band stays what it is."""
    if images.shape[1] == 1:
        return images.int()
    red, green, blue = torch.split(images.int(), 1, dim=1)
    luma = (red * 19595).add_(green, alpha=38470).add_(blue, alpha=7471)
    return luma.add_(0x8000).bitwise_right_shift_(16)


def smooth(images: Tensor) -> Tensor:
    """Pillow's SMOOTH: the 3x3 mean with a weight of 5 in the middle; the border is copied: int32 [n, C, H, W].

    Pillow sums float32 thirteenths and rounds. A thirteenth is never nearer than 1/26 to the half at which rounding
    turns, so the integer round(total / 13) = (2 total + 13) // 26 is the same; 40330 / 2**20 stands for 1 / 26, which
    is exact up to the largest total, 13 * 255.
    """
    wide = images.int()
    rows = (wide[..., :-2] + wide[..., 1:-1]).add_(wide[..., 2:])
    total = (rows[..., :-2, :] + rows[..., 1:-1, :]).add_(rows[..., 2:, :]).add_(wide[..., 1:-1, 1:-1], alpha=4)
    wide[..., 1:-1, 1:-1] = total.mul_(2 * 40330).add_(13 * 40330).bitwise_right_shift_(20)
    return wide


def blend(degenerate: Tensor, images: Tensor, magnitudes: Tensor) -> Tensor:
    """Moves images (uint8 [n, C, H, W]) away from `degenerate` (int32, broadcastable) by the factor 1 + magnitude."""
    tables, which = blend_tables(magnitudes, images.device)
    n = len(images)
    start = send((which * 65536).int(), images.device).view(n, 1, 1, 1)
    index = torch.add(images.int(), degenerate, alpha=256).add_(start).long()
    flat = tables.view(1, -1).expand(n, -1)
    return flat.gather(1, index.view(n, -1)).view_as(images)


def color(images: Tensor, magnitudes: Tensor) -> Tensor:
    """Saturation: away from the grey picture. A grey image is its own degenerate, so Pillow leaves it as it is."""
    return blend(grey(images), images, magnitudes)


def sharpness(images: Tensor, magnitudes: Tensor) -> Tensor:
    """Away from the smoothed picture."""
    return blend(smooth(images), images, magnitudes)
