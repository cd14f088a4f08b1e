"""Classify pictures with an exported model: `python classify_onnx.py MODEL.onnx PICTURE…`.

The script prepares pictures exactly as `itl predict` does. It needs Pillow, NumPy and ONNX Runtime, but not itl.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
from PIL import Image

from itl.streams.pillow_images import central_square


def classify(model: str, pictures: list[str]) -> tuple[list[str], np.ndarray]:
    """Return the class names, and the probabilities `[n, classes]` of some pictures."""
    import onnxruntime  # type: ignore[import-untyped]

    session = onnxruntime.InferenceSession(model)
    metadata = json.loads(session.get_modelmeta().custom_metadata_map["itl"])
    pixels = np.stack([prepare(picture, metadata) for picture in pictures])
    return metadata["labels"], np.asarray(session.run(None, {metadata["input"]["name"]: pixels})[0])


def prepare(picture: str, metadata: dict[str, Any]) -> np.ndarray:
    """Return a picture as pixels `[channels, size, size]` for a model with these metadata."""
    _, channels, size, _ = metadata["input"]["shape"]
    with Image.open(picture) as image:
        pixels = central_square(image, size, metadata.get("interpolation", "bilinear"))
    if channels != 1:
        return pixels
    gray = np.tensordot([19595, 38470, 7471], pixels.astype(np.int64), 1) + (1 << 15)  # ITU-R 601, in units of 1/65536
    return (gray >> 16).astype(np.uint8)[None]


def describe(picture: str, labels: list[str], row: np.ndarray) -> str:
    """Return a line about a picture. Class names may contain control characters, which would act on the terminal."""
    line = f"{picture}  {labels[row.argmax()]}  {100 * row.max():.1f} %"
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: python classify_onnx.py MODEL.onnx PICTURE…")
    labels, probabilities = classify(sys.argv[1], sys.argv[2:])
    for picture, row in zip(sys.argv[2:], probabilities, strict=True):
        print(describe(picture, labels, row))
