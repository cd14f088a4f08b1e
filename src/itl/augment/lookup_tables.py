"""Operations that map each gray level to another: one table of 256 bytes per sample and channel, and one lookup.

Tables are uint8 `[n, C or 1, 256]`. Tables that depend on the magnitude alone are computed on the host; those that
depend on the image (mean, extremes, histogram) on its device.
"""

from __future__ import annotations

import torch
from torch import Tensor

from itl.augment.blend import blend_tables, gray
from itl.augment.host_to_device import send


def look_up(images: Tensor, tables: Tensor) -> Tensor:
    """Map every pixel of images (uint8 `[n, C, H, W]`) by its table (uint8 `[n, C or 1, 256]`)."""
    n, channels = images.shape[:2]
    levels = images.flatten(2).long()
    return tables.expand(n, channels, 256).gather(2, levels).view_as(images)


def brightness(images: Tensor, magnitudes: Tensor) -> Tensor:
    """Blend with black by the factor 1 + magnitude."""
    tables, which = blend_tables(magnitudes, images.device)
    return look_up(images, tables[:, :1].index_select(0, send(which, images.device)))


def contrast(images: Tensor, magnitudes: Tensor) -> Tensor:
    """Blend with the image's mean gray level (rounded half up) by the factor 1 + magnitude."""
    tables, which = blend_tables(magnitudes, images.device)
    pixels = images.shape[2] * images.shape[3]
    total = gray(images).sum(dim=(1, 2, 3), dtype=torch.int64)
    mean = (total * 2 + pixels).div(2 * pixels, rounding_mode="floor")
    rows = tables.view(-1, 256)
    return look_up(images, rows.index_select(0, send(which * 256, images.device) + mean).unsqueeze(1))


def posterize(images: Tensor, magnitudes: Tensor) -> Tensor:
    """Keep each pixel's highest `magnitude` bits."""
    mask = (256 - 2 ** (8 - magnitudes.long())).to(torch.uint8)
    return images & send(mask, images.device).view(-1, 1, 1, 1)


def solarize(images: Tensor, magnitudes: Tensor) -> Tensor:
    """Invert the pixels at or above the threshold."""
    levels = torch.arange(256)
    tables = torch.where(levels < magnitudes.view(-1, 1), levels, 255 - levels).to(torch.uint8)
    return look_up(images, send(tables, images.device).unsqueeze(1))


def invert(images: Tensor, magnitudes: Tensor) -> Tensor:
    """Invert all pixels."""
    return ~images


def autocontrast(images: Tensor, magnitudes: Tensor) -> Tensor:
    """Stretch each channel so that its darkest and lightest pixels become 0 and 255; a constant channel is unchanged.

    Pillow computes its table in double precision, and rounding matters where the exact quotient is an integer (the
    result may be one lower), so the same three operations are done here, each rounded separately.
    """
    flat = images.flatten(2)
    low, high = flat.amin(2, keepdim=True).double(), flat.amax(2, keepdim=True).double()
    levels = torch.arange(256, dtype=torch.float64, device=images.device)
    # Not `255.0 / x`: torch computes that as 255 times a reciprocal, which rounds twice.
    scale = torch.full_like(high, 255.0) / (high - low)
    offset = -low * scale
    stretched = levels * scale
    stretched = (stretched + offset).clamp_(0, 255)
    return look_up(images, torch.where(high > low, stretched, levels).to(torch.uint8))


def equalize(images: Tensor, magnitudes: Tensor) -> Tensor:
    """Equalize each channel's histogram with Pillow's integer steps; a channel with too few levels is unchanged."""
    n, channels = images.shape[:2]
    levels = torch.arange(256, device=images.device, dtype=torch.int32)
    pixels = images.reshape(n * channels, -1)
    counts = _histogram(pixels)
    lightest = counts.gather(1, pixels.amax(1, keepdim=True).long())
    step = (pixels.shape[1] - lightest).div(255, rounding_mode="floor")
    before = counts.cumsum(1, dtype=torch.int32) - counts
    # A step of zero means "unchanged": divide by one there and select the identity afterwards.
    divisor = step.clamp(min=1)
    spread = (before + step.div(2, rounding_mode="floor")).div(divisor, rounding_mode="floor").clamp_(max=255)
    tables = torch.where(step > 0, spread, levels).to(torch.uint8)
    return look_up(images, tables.view(n, channels, 256))


def _histogram(pixels: Tensor) -> Tensor:
    """Histogram of each row (uint8 `[r, p]`): int32 `[r, 256]`.

    On CUDA the index is flattened: torch's deterministic mode supports scatter_add_ over one axis only (integer sums
    are exact in any order). On a CPU two axes run in parallel and one does not.
    """
    index = pixels.long()
    counts = torch.zeros(len(pixels), 256, dtype=torch.int32, device=pixels.device)
    one = torch.ones(1, dtype=torch.int32, device=pixels.device)
    if pixels.is_cuda:
        index += torch.arange(len(pixels), device=pixels.device).view(-1, 1) * 256
        counts.view(-1).scatter_add_(0, index.view(-1), one.expand(index.numel()))
        return counts
    return counts.scatter_add_(1, index, one.expand_as(index))
