"""Folders of small pictures: every class its own pattern, with noise."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from support.tiny import TINY, tiny_images

NAMES = ("ant", "bee", "cat", "dog", "eel", "fox")
SMALL = {**TINY, "net.strided": False}


def write_pictures(folder: Path, *classes: str, each: int = 10, seed: int = 0, suffix: str = "png") -> Path:
    """`each` pictures of 8 x 8 of every class, `folder/class/000.png` and on."""
    images, labels = tiny_images(len(NAMES), each, channels=3, seed=seed)
    for name in classes:
        (folder / name).mkdir(parents=True, exist_ok=True)
        for k, row in enumerate(np.flatnonzero(labels == NAMES.index(name))):
            Image.fromarray(images[row].transpose(1, 2, 0)).save(folder / name / f"{seed}{k:03d}.{suffix}")
    return folder


def as_options(settings: dict[str, object]) -> Sequence[str]:
    """Settings as words of a command line."""
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
