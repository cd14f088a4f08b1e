"""Training images of earlier lessons, read again from folders that still exist."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from itl.apps.model import Model
from itl.apps.model.input_format import interpolation
from itl.apps.teaching.held_out_evaluation import current_names, last_entries, recorded_train_only_hashes
from itl.apps.teaching.lesson import DecodedImages, Lesson
from itl.apps.teaching.options import ROWS_NOTE
from itl.errors import UserError
from itl.learner.state import memory_images


@dataclass(frozen=True)
class FolderReplay:
    """Images of earlier folders to learn again.

    Attributes:
        images: The images that are not in memory, under today's class names.
        folders: Number of folders that they come from.
        notes: What an unfinished lesson must remember to choose the same images.
    """

    images: DecodedImages
    folders: int
    notes: dict[str, Any]


def replay_folders(model: Model, without: Collection[str]) -> FolderReplay:
    """Read the training images of all earlier lessons whose folders still exist.

    Images that are in memory are left out, because they are learned again anyway. So are folders that were learned
    before something was forgotten: they may contain what was to be forgotten.

    Args:
        model: The model, with its memory.
        without: Folders to leave out, as given by `relative_folder`.
    """
    size, parts = model.image["size"], []
    for folder, entry in last_entries(model).items():
        if folder in without or _forgotten_since(model, entry):
            continue
        with suppress(UserError):  # the folder was moved or deleted
            hashes = recorded_train_only_hashes(model, folder)
            lesson = Lesson.from_folder(model.path / folder, bool(entry.get("tested")), hashes)
            images, names = lesson.read(size, None, interpolation(model)).train, current_names(model, entry)
            labels = [names.get(label, label) for label in images.labels]
            parts.append(DecodedImages(images.pixels, labels).of_classes(set(model.classes)))
    empty = torch.zeros(0, model.image["channels"], size, size, dtype=torch.uint8)
    pixels = torch.cat([empty, *(part.pixels for part in parts)])
    labels = [label for part in parts for label in part.labels]
    chosen = _rows(model, pixels)
    rows = np.flatnonzero(chosen)
    images = DecodedImages(pixels[rows], [labels[row] for row in rows])
    return FolderReplay(images, len(parts), {ROWS_NOTE: np.packbits(chosen).tobytes().hex()})


def _rows(model: Model, pixels: Tensor) -> np.ndarray:
    """Which images are not in memory, bool `[n]`; for an unfinished lesson, those that it was started with."""
    saved = (model.pending or {}).get(ROWS_NOTE)
    if saved is not None:
        bits = np.unpackbits(np.frombuffer(bytes.fromhex(saved), np.uint8))
        return np.resize(bits, len(pixels)).astype(bool) if len(bits) else np.zeros(len(pixels), bool)
    stored = {_digest(image) for image in memory_images(model.learner)}
    return np.array([_digest(image) not in stored for image in pixels], bool)


def _digest(image: Tensor) -> bytes:
    return hashlib.sha256(np.ascontiguousarray(image.numpy()).tobytes()).digest()


def _forgotten_since(model: Model, entry: dict[str, Any]) -> bool:
    """Whether something was forgotten after this entry of the history."""
    start = next(k for k, other in enumerate(model.history) if other is entry)
    return any(change["what"] == "forget" for change in model.history[start:])
