"""Pillow images of any mode as 8-bit RGB."""

from __future__ import annotations

import numpy as np
from PIL import Image

CLEAR = ("LA", "La", "PA", "RGBA", "RGBa")  # modes with transparency
PAPER = (255, 255, 255)  # what a transparent pixel is laid over


def as_rgb(image: Image.Image) -> Image.Image:
    """Any mode as 8-bit RGB: transparency over white, 16 bits by their upper 8."""
    if image.mode.startswith("I") or image.mode == "F":
        return _deep(image).convert("RGB")
    if image.mode in CLEAR or "transparency" in image.info:
        layers = image.convert("RGBA")
        paper = Image.new("RGBA", layers.size, (*PAPER, 255))
        return Image.alpha_composite(paper, layers).convert("RGB")
    return image.convert("RGB")


def _deep(image: Image.Image) -> Image.Image:
    """Grey of more than 8 bits by its upper 8: Pillow would cut everything above 255 off. Floats are 0 to 1."""
    values = np.asarray(image)
    if image.mode == "F":
        return Image.fromarray((np.nan_to_num(values).clip(0, 1) * 255).round().astype(np.uint8))
    # 32-bit integers have no range of their own; 16-bit files are opened as such by older versions of Pillow.
    return Image.fromarray((values.astype(np.int64).clip(0, 65535) >> 8).astype(np.uint8))
