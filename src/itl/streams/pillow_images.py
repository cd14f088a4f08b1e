"""Conversion of Pillow images to 8-bit RGB and to the squares that a network takes.

The script beside an exported model contains this file, so it imports nothing of itl.
"""

from __future__ import annotations

import math

import numpy as np
from PIL import Image

TRANSPARENT_MODES = ("LA", "La", "PA", "RGBA", "RGBa")
BACKGROUND = (255, 255, 255)
SUPPORT = {"bilinear": 1, "bicubic": 2}  # radius of each filter, in pixels of the result
EXIF_ORIENTATION_TAG = 0x0112
EXIF_TRANSPOSES = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def as_rgb(image: Image.Image) -> Image.Image:
    """Convert an image of any mode to 8-bit RGB: over white if it is transparent, by the upper 8 bits if it has 16."""
    if image.mode.startswith("I") or image.mode == "F":
        return _to_8_bits(image).convert("RGB")
    if image.mode in TRANSPARENT_MODES or "transparency" in image.info:
        rgba = image.convert("RGBA")
        background = Image.new("RGBA", rgba.size, (*BACKGROUND, 255))
        return Image.alpha_composite(background, rgba).convert("RGB")
    return image.convert("RGB")


def _to_8_bits(image: Image.Image) -> Image.Image:
    """Keep the upper 8 bits of a gray image, where Pillow would clip at 255; floats are taken as 0 to 1."""
    values = np.asarray(image)
    if image.mode == "F":
        return Image.fromarray((np.nan_to_num(values).clip(0, 1) * 255).round().astype(np.uint8))
    # Older versions of Pillow open 16-bit files as 32-bit integers.
    return Image.fromarray((values.astype(np.int64).clip(0, 65535) >> 8).astype(np.uint8))


def central_square(image: Image.Image, size: int, interpolation: str = "bilinear") -> np.ndarray:
    """Return the largest central square of an opened image, upright and resized.

    Args:
        image: An image that is opened but not decoded.
        size: Width and height of the result in pixels.
        interpolation: "bilinear" or "bicubic".

    Returns:
        RGB pixels, uint8 `[3, size, size]`.
    """
    short_side = min(image.size)
    if short_side > 2 * size:
        # JPEG can be decoded at 1/2, 1/4 or 1/8 scale; twice the target size keeps all visible detail.
        image.draft(None, (image.width * 2 * size // short_side, image.height * 2 * size // short_side))
    if image.format == "TIFF":
        image.load()  # Pillow applies the orientation of TIFF files itself and removes the tag
    transpose = exif_transpose(image)
    # Crop to the square plus the filter support before converting: a 20,000 x 1 image must not be enlarged as a whole.
    side = min(image.size)
    margin = SUPPORT[interpolation] * -(-side // size) + 1
    left, top = ((length - side) / 2 for length in image.size)
    x, y = max(0, math.floor(left) - margin), max(0, math.floor(top) - margin)
    cropped = as_rgb(image.crop((x, y, image.width - x, image.height - y)))
    box = (left - x, top - y, left - x + side, top - y + side)
    square = cropped.resize((size, size), Image.Resampling[interpolation.upper()], box=box)
    upright = square if transpose is None else square.transpose(transpose)
    return np.ascontiguousarray(np.asarray(upright).transpose(2, 0, 1))


def exif_transpose(image: Image.Image) -> Image.Transpose | None:
    """Return the operation that makes an image upright, or None if EXIF names none or is unreadable."""
    try:
        return EXIF_TRANSPOSES.get(image.getexif().get(EXIF_ORIENTATION_TAG, 1))
    except Exception:  # a damaged tag does not make the image unusable
        return None
