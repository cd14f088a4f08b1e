"""A small model for tests: 8x8 images of four classes, in two tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from itl.apps.model import Model
from support.tiny import ONE_BLOCK, TINY, tiny_images

NAMES = ("cat", "dog", "eel", "fox")


def tiny_task(*classes: str, each: int = 10, seed: int = 0) -> tuple[Tensor, list[str]]:
    """Images, uint8 `[n, 3, 8, 8]`, and their class names."""
    images, labels = tiny_images(4, each, channels=3, seed=seed)
    rows = np.isin(labels, [NAMES.index(name) for name in classes])
    return torch.from_numpy(images[rows]), [NAMES[label] for label in labels[rows]]


def tiny_model(path: Path, method: str = "itl", buffer: int = 8, **options: Any) -> Model:
    """A new, untrained model for `tiny_task`."""
    options = {"size": 8, "settings": {**TINY, "net.name": ONE_BLOCK}, "device": "cpu", "flip": False, **options}
    return Model.create(path, method=method, buffer=buffer, **options)


def teach(model: Model, *classes: str, **options: Any) -> Model:
    """Teach a model some of the classes and commit."""
    with model.lock():
        model.teach(*tiny_task(*classes), {"what": " ".join(classes)}, **options)
        model.finish({"folders": list(classes)})
    return model


def trained_model(path: Path, method: str = "itl", **options: Any) -> Model:
    """A model trained on cats and dogs, then on eels and foxes."""
    model = tiny_model(path, method, **options)
    return teach(teach(model, "cat", "dog"), "eel", "fox")
