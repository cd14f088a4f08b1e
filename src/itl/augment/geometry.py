"""Where a pixel comes from: crop, flip, shear, translation and rotation as one integer gather.

Pillow's nearest-neighbour affine transform walks the source in 16.16 fixed point. Its six coefficients are computed on
the host, in double precision and in Pillow's order of operations; the device only adds, shifts and gathers integers.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import pad

from itl.augment.device import send

ONE = 1 << 16
HALF = ONE // 2
GEOMETRY = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")

Matrix = tuple[float, float, float, float, float, float]


def affine(images: Tensor, fixed: Tensor, fill: int) -> Tensor:
    """Each image seen through its own affine map, nearest neighbour; what lies outside the source is `fill`.

    images uint8 [n, C, H, W]; fixed int32 [n, 6] on the host: output (x, y) takes the source pixel
    ((f0 x + f1 y + f2) >> 16, (f3 x + f4 y + f5) >> 16). Coordinates must stay below 2**15, as in Pillow.
    """
    slanted = bool(fixed[:, 1].any()), bool(fixed[:, 3].any())
    return _through(images, send(fixed, images.device), fill, *slanted)


def _through(images: Tensor, fixed: Tensor, fill: int, columns: bool, rows: bool) -> Tensor:
    """The same with all on one device; whether any image's columns or rows are slanted is known beforehand."""
    n, channels, height, width = images.shape
    # One ring of fill around the image turns "outside" into a clamp; in it, every coordinate is one more.
    ringed = pad(images, (1, 1, 1, 1), value=fill).flatten(2)
    f = fixed.view(n, 6, 1, 1)
    x = torch.arange(width, dtype=torch.int32, device=images.device)
    y = torch.arange(height, dtype=torch.int32, device=images.device).view(-1, 1)
    column, row = f[:, 0] * x + (f[:, 2] + ONE), f[:, 4] * y + (f[:, 5] + ONE)
    # A batch without shear or rotation (every crop) is separable: the coordinates stay two short vectors.
    if columns:
        column = column + f[:, 1] * y
    if rows:
        row = row + f[:, 3] * x
    column = column.bitwise_right_shift_(16).clamp_(0, width + 1)
    row = row.bitwise_right_shift_(16).clamp_(0, height + 1)
    source = (row.mul_(width + 2) + column).long()
    index = source.flatten(1).unsqueeze(1).expand(n, channels, -1)
    return ringed.gather(2, index).view_as(images)


def crop_and_flip(images: Tensor, shift: Tensor, flip: Tensor, padding: int) -> Tensor:
    """Cuts each image out of its zero-padded self at `shift` (y, x), then mirrors it where `flip`: one gather.

    shift int64 [n, 2] and flip bool [n], both on the host or both with the images.
    """
    width = images.shape[-1]
    fixed = torch.zeros(len(images), 6, dtype=torch.int64, device=shift.device)
    left, top = shift[:, 1] - padding, shift[:, 0] - padding
    fixed[:, 0] = torch.where(flip, -ONE, ONE)
    fixed[:, 2] = torch.where(flip, width - 1 + left, left) * ONE + HALF
    fixed[:, 4] = ONE
    fixed[:, 5] = top * ONE + HALF
    return _through(images, send(fixed.int(), images.device), 0, False, False)


def coefficients(name: str, magnitudes: Tensor, height: int, width: int) -> Tensor:
    """The fixed-point coefficients of a geometric operation, for each magnitude (host [n]): int32 [n, 6]."""
    values, which = torch.unique(magnitudes, return_inverse=True)
    rows = [_fixed(name, value, height, width) for value in values.tolist()]
    return torch.tensor(rows, dtype=torch.int32).view(-1, 6)[which]


@lru_cache(maxsize=4096)
def _fixed(name: str, magnitude: float, height: int, width: int) -> tuple[int, ...]:
    """Pillow's rounding of an output-to-source matrix to 16.16, at the centre of the first output pixel."""
    a, b, c, d, e, f = _matrix(name, magnitude, height, width)
    values = (a, b, c + a * 0.5 + b * 0.5, d, e, f + d * 0.5 + e * 0.5)
    return tuple(math.floor(value * 65536.0 + 0.5) for value in values)


def _matrix(name: str, magnitude: float, height: int, width: int) -> Matrix:
    """The output-to-source matrix (a, b, c, d, e, f) that torchvision hands to Pillow."""
    if name == "TranslateX":
        return 1.0, 0.0, -float(int(magnitude)), 0.0, 1.0, 0.0
    if name == "TranslateY":
        return 1.0, 0.0, 0.0, 0.0, 1.0, -float(int(magnitude))
    if name == "Rotate":
        return _rotation(magnitude, height, width)
    # torchvision goes through degrees and back, about the corner (0, 0).
    slope = math.radians(math.degrees(math.atan(magnitude)))
    if name == "ShearX":
        return 1.0, math.tan(slope), 0.0, 0.0, 1.0, 0.0
    return 1.0, 0.0, 0.0, -(math.sin(-slope) / math.cos(slope)), math.cos(-slope) / math.cos(slope), 0.0


def _rotation(degrees: float, height: int, width: int) -> Matrix:
    """Counter-clockwise about the middle; sine and cosine rounded to 15 digits, as Pillow rounds them."""
    angle = -math.radians(degrees % 360.0)
    cos, sin = round(math.cos(angle), 15), round(math.sin(angle), 15)
    x, y = width / 2, height / 2
    return cos, sin, (cos * -x + sin * -y + 0.0) + x, -sin, cos, (-sin * -x + cos * -y + 0.0) + y
