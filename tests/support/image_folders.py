"""Folders of small images: one pattern per class, with noise."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from support.tiny import TINY, tiny_images

NAMES = ("ant", "bee", "cat", "dog", "eel", "fox")
IMAGE_SETTINGS = {**TINY, "net.strided": False}


def write_images(folder: Path, *classes: str, each: int = 10, seed: int = 0, suffix: str = "png") -> Path:
    """Write `each` 8x8 images per class as `folder/CLASS/<seed><number>.<suffix>`."""
    images, labels = tiny_images(len(NAMES), each, channels=3, seed=seed)
    for name in classes:
        (folder / name).mkdir(parents=True, exist_ok=True)
        for k, row in enumerate(np.flatnonzero(labels == NAMES.index(name))):
            Image.fromarray(images[row].transpose(1, 2, 0)).save(folder / name / f"{seed}{k:03d}.{suffix}")
    return folder


def as_options(settings: dict[str, object]) -> Sequence[str]:
    """Settings as command-line options."""
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
