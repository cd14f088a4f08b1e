"""AutoAugment's operations on a batch, and the two steps of a policy applied to samples that each drew their own."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial

import numpy as np
import torch
from torch import Tensor

from itl.augment import blend, lookup_tables
from itl.augment.device import pick
from itl.augment.geometry import GEOMETRY, affine, coefficients
from itl.augment.policy import BINS, NAMES, signed


def geometric(name: str, images: Tensor, magnitudes: Tensor, fill: int = 0) -> Tensor:
    """One geometric operation on images (uint8 [n, C, H, W]) with a magnitude a sample (host float64 [n])."""
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
    """Applies to each sample its drawn steps (`ops` and signed `levels`, host int64 [n, steps]), one after the other.

    For each step the samples are brought together by operation, so that an operation is a handful of launches however
    many samples drew it. The sorting is done on the host, where the draws are; the device receives indices.
    """
    here = torch.arange(len(images))  # where each sample lies now
    for op, level in zip(ops.unbind(1), levels.unbind(1), strict=True):
        order = torch.from_numpy(op.numpy().astype(np.uint8).argsort(kind="stable"))  # bytes: a counting sort
        images = _step(pick(images, here[order]), op[order], level[order], fill)
        here[order] = torch.arange(len(images))
    return pick(images, here)


@lru_cache(maxsize=64)
def _meaning(height: int, width: int) -> Tensor:
    """The magnitudes behind every operation's signed bins: float64 [operations, 2 * BINS - 1]."""
    return torch.stack([signed(name, height, width) for name in NAMES])


@lru_cache(maxsize=64)
def moves(height: int, width: int) -> Tensor:
    """The coefficients of every geometric operation at every signed bin: int32 [operations, 2 * BINS - 1, 6]."""
    return torch.stack([coefficients(name, signed(name, height, width), height, width) for name in GEOMETRY])


def _step(images: Tensor, op: Tensor, level: Tensor, fill: int) -> Tensor:
    """One step on samples sorted by operation: first those left alone, then the geometric ones, then the others."""
    height, width = images.shape[2:]
    sizes = torch.bincount(op, minlength=len(NAMES)).tolist()
    magnitude = _meaning(height, width)[op, level + BINS - 1]
    parts = dict(zip(NAMES, zip(torch.split(images, sizes), torch.split(magnitude, sizes), strict=True), strict=True))

    # The geometric operations differ in their coefficients only, so all of them are one gather.
    still, moved = sizes[0], slice(sizes[0], sum(sizes[: 1 + len(GEOMETRY)]))
    fixed = moves(height, width)[op[moved] - 1, level[moved] + BINS - 1]
    done = [images[:still], affine(images[moved], fixed, fill)]
    done += [OPS[name](*parts[name]) for name in NAMES[1 + len(GEOMETRY) :] if len(parts[name][0])]
    return torch.cat(done)
