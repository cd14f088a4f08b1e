"""AutoAugment's operations on a batch, and a policy whose two steps differ from sample to sample."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial

import numpy as np
import torch
from torch import Tensor

from itl.augment import blend, lookup_tables
from itl.augment.geometry import GEOMETRY, affine, coefficients
from itl.augment.host_to_device import select
from itl.augment.policy import BINS, OPERATION_NAMES, signed


def geometric(name: str, images: Tensor, magnitudes: Tensor, fill: int = 0) -> Tensor:
    """Apply a geometric operation to images (uint8 `[n, C, H, W]`), one magnitude per sample (host float64 `[n]`)."""
    return affine(images, coefficients(name, magnitudes, *images.shape[2:]), fill)


# images uint8 [n, C, H, W] with C = 1 or 3, magnitudes float64 [n] on the host -> uint8 [n, C, H, W]
OPS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    **{name: partial(geometric, name) for name in GEOMETRY},
    "Brightness": lookup_tables.brightness,
    "Contrast": lookup_tables.contrast,
    "Posterize": lookup_tables.posterize,
    "Solarize": lookup_tables.solarize,
    "AutoContrast": lookup_tables.autocontrast,
    "Equalize": lookup_tables.equalize,
    "Invert": lookup_tables.invert,
    "Color": blend.color,
    "Sharpness": blend.sharpness,
}


def autoaugment(images: Tensor, ops: Tensor, levels: Tensor, fill: int) -> Tensor:
    """Apply each sample's steps (`ops` and signed `levels`, host int64 `[n, steps]`) one after the other.

    Each step groups the samples by operation, so that an operation needs a handful of launches however many samples
    use it. The sorting happens on the host, where the draws are; the device receives indices.
    """
    position = torch.arange(len(images))  # current position of each sample
    for op, level in zip(ops.unbind(1), levels.unbind(1), strict=True):
        order = torch.from_numpy(op.numpy().astype(np.uint8).argsort(kind="stable"))  # bytes use a counting sort
        images = _step(select(images, position[order]), op[order], level[order], fill)
        position[order] = torch.arange(len(images))
    return select(images, position)


@lru_cache(maxsize=64)
def _magnitudes(height: int, width: int) -> Tensor:
    """Magnitude of every operation at every signed bin: float64 `[operations, 2 * BINS - 1]`."""
    return torch.stack([signed(name, height, width) for name in OPERATION_NAMES])


@lru_cache(maxsize=64)
def geometric_coefficients(height: int, width: int) -> Tensor:
    """Coefficients of every geometric operation at every signed bin: int32 `[operations, 2 * BINS - 1, 6]`."""
    return torch.stack([coefficients(name, signed(name, height, width), height, width) for name in GEOMETRY])


def _step(images: Tensor, op: Tensor, level: Tensor, fill: int) -> Tensor:
    """Apply one step to samples sorted by operation: identity first, then geometric, then the others."""
    height, width = images.shape[2:]
    sizes = torch.bincount(op, minlength=len(OPERATION_NAMES)).tolist()
    magnitude = _magnitudes(height, width)[op, level + BINS - 1]
    parts = dict(
        zip(OPERATION_NAMES, zip(torch.split(images, sizes), torch.split(magnitude, sizes), strict=True), strict=True)
    )

    # Geometric operations differ only in their coefficients, so one gather applies all of them.
    unchanged, moved = sizes[0], slice(sizes[0], sum(sizes[: 1 + len(GEOMETRY)]))
    fixed = geometric_coefficients(height, width)[op[moved] - 1, level[moved] + BINS - 1]
    done = [images[:unchanged], affine(images[moved], fixed, fill)]
    done += [OPS[name](*parts[name]) for name in OPERATION_NAMES[1 + len(GEOMETRY) :] if len(parts[name][0])]
    return torch.cat(done)
