"""Evaluate a model on pictures that it was not trained on: accuracy, confusion, and the least certain ones."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from itl.apps.csv_cells import plain_cell
from itl.apps.model import Model, evaluate_predictions
from itl.apps.model.input_format import read_model_images
from itl.apps.server.offered_models import Session
from itl.apps.teaching.held_out_evaluation import (
    GroupAccuracy,
    accuracy_when_taught,
    current_names,
    last_entries,
    recorded_train_only_hashes,
)
from itl.apps.teaching.lesson import Lesson
from itl.apps.teaching.options import PICTURES_FOLDER
from itl.errors import UserError

CHUNK = 256  # pictures in memory at a time
MAX_CELL_PICTURES = 60
MAX_UNCERTAIN = 300


@dataclass(frozen=True)
class ReviewedPicture:
    """A held-out or tried picture and what the model predicts.

    Attributes:
        id: Picture id.
        path: The image file.
        label: Its class under today's name; None for a tried picture.
        lesson: Name of its lesson; empty for a tried picture.
        movable: Whether it can be moved into the next lesson.
        probabilities: `[classes]`.
        unknown: Whether the model takes it for none of its classes.
    """

    id: str
    path: Path
    label: str | None
    lesson: str
    movable: bool
    probabilities: np.ndarray
    unknown: bool

    def uncertainty(self, classes: Sequence[str]) -> float:
        """One minus the probability of the true class, or of the most probable one if the true class is unknown."""
        best = self.probabilities.max() if self.label is None else self.probabilities[classes.index(self.label)]
        return 1 - float(best)


@dataclass(frozen=True)
class Review:
    """The classes of a model and its reviewed pictures."""

    classes: list[str]
    pictures: list[ReviewedPicture]
    when_taught: dict[str, float | None]

    def to_dict(self, memory: dict[str, list[int]]) -> dict[str, Any]:
        """Return what the page shows; `memory` are the memory slots of each class."""
        held_out = [picture for picture in self.pictures if picture.label is not None]
        probabilities = np.stack([p.probabilities for p in held_out]) if held_out else np.zeros((0, len(self.classes)))
        result = evaluate_predictions(self.classes, probabilities, [str(p.label) for p in held_out])
        cells: dict[str, list[str]] = {}
        for picture, column in zip(held_out, probabilities.argmax(1), strict=True):
            cell = cells.setdefault(f"{self.classes.index(str(picture.label))},{column}", [])
            if len(cell) < MAX_CELL_PICTURES:
                cell.append(picture.id)
        counts = result.confusion.sum(1)
        accuracies = [
            100 * float(result.confusion[k, k]) / int(counts[k]) if counts[k] else None
            for k in range(len(self.classes))
        ]
        groups = [
            GroupAccuracy(name, int(counts[k]), accuracies[k], self.when_taught[name])
            for k, name in enumerate(self.classes)
        ]
        return {
            "accuracy": result.accuracy if held_out else None,
            "images": len(held_out),
            "classes": [{**group.to_dict(), "memory": memory.get(group.name, [])} for group in groups],
            "confusion": result.confusion.tolist(),
            "cells": cells,
            "uncertain": self._uncertain(),
        }

    def _uncertain(self) -> list[dict[str, Any]]:
        order = sorted(self.pictures, key=lambda picture: -picture.uncertainty(self.classes))
        return [self._row(picture) for picture in order[:MAX_UNCERTAIN]]

    def _row(self, picture: ReviewedPicture) -> dict[str, Any]:
        best = int(picture.probabilities.argmax())
        confidence = float(picture.probabilities[best])
        return {
            "picture": picture.id,
            "lesson": picture.lesson,
            "class": picture.label,
            "predicted": self.classes[best],
            "confidence": round(confidence, 6),
            "unknown": picture.unknown,
            "movable": picture.movable,
        }

    def to_csv(self) -> str:
        """Return the predictions as comma-separated values."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(["picture", "lesson", "class", "predicted", "confidence", "unknown"])
        for picture in self.pictures:
            row = self._row(picture)
            values = (row["picture"], row["lesson"], row["class"] or "", row["predicted"])
            writer.writerow([*map(plain_cell, values), f"{row['confidence']:.6f}", int(row["unknown"])])
        return out.getvalue()


def review_model(session: Session, model: Model) -> Review:
    """Predict all held-out pictures of all lessons, and all tried pictures."""
    rows = list(_held_out(model))
    for picture in session.pictures.tried():
        path = session.pictures.path(picture)
        if path is not None:
            rows.append((path, None, "", True))
    pictures = []
    for start in range(0, len(rows), CHUNK):
        chunk = rows[start : start + CHUNK]
        decoded = read_model_images(model, [path for path, *_ in chunk])
        if not decoded.indices:
            continue
        found = model.classify(decoded.pixels)
        for index, row, unknown in zip(decoded.indices, found.probabilities, found.unknown, strict=True):
            path, label, lesson, movable = chunk[index]
            picture_id = _picture_id(path, movable)
            pictures.append(ReviewedPicture(picture_id, path, label, lesson, movable, row, bool(unknown)))
    session.outside_files = {picture.id: picture.path for picture in pictures if not picture.movable}
    return Review(model.classes, pictures, {name: accuracy_when_taught(model, name) for name in model.classes})


def _held_out(model: Model) -> Iterator[tuple[Path, str | None, str, bool]]:
    """Yield file, class, lesson and whether the file can be moved, for every held-out picture that is available."""
    for folder, entry in last_entries(model).items():
        if not entry.get("tested"):
            continue
        with suppress(UserError):  # the folder was moved, or is on another machine
            train_only = recorded_train_only_hashes(model, folder)
            lesson, names = Lesson.from_folder(model.path / folder, train_only=train_only), current_names(model, entry)
            movable = folder.startswith(f"{PICTURES_FOLDER}/")
            for label, files in lesson.files.test.items():
                name = names.get(label, label)
                if name in model.classes:
                    yield from ((path, name, str(entry.get("name", folder)), movable) for path in files)


def _picture_id(path: Path, movable: bool) -> str:
    return path.stem if movable else hashlib.sha256(str(path).encode("utf-8", "surrogateescape")).hexdigest()[:32]


def memory_slots(model: Model) -> dict[str, list[int]]:
    """Return the memory slots of each class."""
    slots: dict[str, list[int]] = {name: [] for name in model.classes}
    for slot, label in enumerate(model.learner.memory.labels.tolist()):
        slots[model.output_names[label]].append(slot)
    return slots
