"""Conversion of Pillow images to 8-bit RGB."""

from __future__ import annotations

import numpy as np
from PIL import Image

TRANSPARENT_MODES = ("LA", "La", "PA", "RGBA", "RGBa")
BACKGROUND = (255, 255, 255)


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
