"""Crop, flip, shear, translation and rotation as one integer gather.

Pillow's nearest-neighbor affine transform steps through the source in 16.16 fixed point. Its six coefficients are
computed on the host, in double precision and in Pillow's order of operations; the device only adds, shifts and gathers
integers.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import pad

from itl.augment.host_to_device import send

ONE = 1 << 16
HALF = ONE // 2
GEOMETRY = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")

Matrix = tuple[float, float, float, float, float, float]


def affine(images: Tensor, fixed: Tensor, fill: int) -> Tensor:
    """Transform each image by its own affine map, nearest neighbor.

    Args:
        images: uint8 `[n, C, H, W]`.
        fixed: int32 `[n, 6]` on the host: output (x, y) reads the source pixel
            ((f0 x + f1 y + f2) >> 16, (f3 x + f4 y + f5) >> 16). Coordinates must stay below 2**15, as in Pillow.
        fill: Gray level of pixels outside the source.
    """
    sheared = bool(fixed[:, 1].any()), bool(fixed[:, 3].any())
    return _gather_affine(images, send(fixed, images.device), fill, *sheared)


def _gather_affine(images: Tensor, fixed: Tensor, fill: int, columns: bool, rows: bool) -> Tensor:
    """`affine` with everything on one device. `columns` and `rows`: whether any image's are sheared or rotated."""
    n, channels, height, width = images.shape
    # A border of `fill` turns "outside" into a clamp; all coordinates grow by one.
    bordered = pad(images, (1, 1, 1, 1), value=fill).flatten(2)
    f = fixed.view(n, 6, 1, 1)
    x = torch.arange(width, dtype=torch.int32, device=images.device)
    y = torch.arange(height, dtype=torch.int32, device=images.device).view(-1, 1)
    column, row = f[:, 0] * x + (f[:, 2] + ONE), f[:, 4] * y + (f[:, 5] + ONE)
    # Without shear or rotation (every crop) the map is separable, and the coordinates are two short vectors.
    if columns:
        column = column + f[:, 1] * y
    if rows:
        row = row + f[:, 3] * x
    column = column.bitwise_right_shift_(16).clamp_(0, width + 1)
    row = row.bitwise_right_shift_(16).clamp_(0, height + 1)
    source = (row.mul_(width + 2) + column).long()
    index = source.flatten(1).unsqueeze(1).expand(n, channels, -1)
    return bordered.gather(2, index).view_as(images)


def crop_and_flip(images: Tensor, shift: Tensor, flip: Tensor, padding: int) -> Tensor:
    """Crop each zero-padded image at `shift` (y, x), then flip it horizontally where `flip`, in one gather.

    Args:
        images: uint8 `[n, C, H, W]`.
        shift: int64 `[n, 2]`, on the host or the images' device.
        flip: bool `[n]`, on the same device as `shift`.
        padding: Zeros on each side.
    """
    width = images.shape[-1]
    fixed = torch.zeros(len(images), 6, dtype=torch.int64, device=shift.device)
    left, top = shift[:, 1] - padding, shift[:, 0] - padding
    fixed[:, 0] = torch.where(flip, -ONE, ONE)
    fixed[:, 2] = torch.where(flip, width - 1 + left, left) * ONE + HALF
    fixed[:, 4] = ONE
    fixed[:, 5] = top * ONE + HALF
    return _gather_affine(images, send(fixed.int(), images.device), 0, False, False)


def coefficients(name: str, magnitudes: Tensor, height: int, width: int) -> Tensor:
    """Fixed-point coefficients of a geometric operation for each magnitude (host `[n]`): int32 `[n, 6]`."""
    values, which = torch.unique(magnitudes, return_inverse=True)
    rows = [_fixed(name, value, height, width) for value in values.tolist()]
    return torch.tensor(rows, dtype=torch.int32).view(-1, 6)[which]


@lru_cache(maxsize=4096)
def _fixed(name: str, magnitude: float, height: int, width: int) -> tuple[int, ...]:
    """The output-to-source matrix in 16.16, rounded as in Pillow at the center of the first output pixel."""
    a, b, c, d, e, f = _matrix(name, magnitude, height, width)
    values = (a, b, c + a * 0.5 + b * 0.5, d, e, f + d * 0.5 + e * 0.5)
    return tuple(math.floor(value * 65536.0 + 0.5) for value in values)


def _matrix(name: str, magnitude: float, height: int, width: int) -> Matrix:
    """The output-to-source matrix (a, b, c, d, e, f) that torchvision passes to Pillow."""
    if name == "TranslateX":
        return 1.0, 0.0, -float(int(magnitude)), 0.0, 1.0, 0.0
    if name == "TranslateY":
        return 1.0, 0.0, 0.0, 0.0, 1.0, -float(int(magnitude))
    if name == "Rotate":
        return _rotation(magnitude, height, width)
    # torchvision converts to degrees and back and shears about the corner (0, 0).
    slope = math.radians(math.degrees(math.atan(magnitude)))
    if name == "ShearX":
        return 1.0, math.tan(slope), 0.0, 0.0, 1.0, 0.0
    return 1.0, 0.0, 0.0, -(math.sin(-slope) / math.cos(slope)), math.cos(-slope) / math.cos(slope), 0.0


def _rotation(degrees: float, height: int, width: int) -> Matrix:
    """Counterclockwise rotation about the center; sine and cosine are rounded to 15 digits, as in Pillow."""
    angle = -math.radians(degrees % 360.0)
    cos, sin = round(math.cos(angle), 15), round(math.sin(angle), 15)
    x, y = width / 2, height / 2
    return cos, sin, (cos * -x + sin * -y + 0.0) + x, -sin, cos, (-sin * -x + cos * -y + 0.0) + y
