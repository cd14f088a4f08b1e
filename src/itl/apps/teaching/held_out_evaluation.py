"""Evaluate a model on the test images of all lessons, and compare with the accuracy when they were learned."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from itl.apps.model import Model
from itl.apps.model.calibration import Outputs
from itl.apps.model.history import is_lesson
from itl.apps.model.input_format import interpolation
from itl.apps.teaching.lesson import DecodedImages, Lesson
from itl.errors import UserError

MAX_FALL = 5.0  # percentage points that a class may lose in one lesson without a remark


@dataclass(frozen=True)
class GroupAccuracy:
    """Accuracy of a task or class.

    Attributes:
        name: Name of the task or class.
        images: Number of test images.
        accuracy: Percent of them classified correctly; None without test images.
        accuracy_when_taught: The same when the task or class was last taught; None if unknown.
    """

    name: str
    images: int
    accuracy: float | None
    accuracy_when_taught: float | None = None

    @property
    def forgotten(self) -> float | None:
        """Accuracy lost since the task or class was last taught, in percentage points; None if unknown."""
        if self.accuracy is None or self.accuracy_when_taught is None:
            return None
        return self.accuracy_when_taught - self.accuracy

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serializable dict with the keys of `itl learn --json`."""
        return {
            "name": self.name,
            "images": self.images,
            "now": self.accuracy,
            "was": self.accuracy_when_taught,
            "forgotten": self.forgotten,
        }


@dataclass(frozen=True)
class HeldOutScores:
    """Accuracy by task, by class, and over all test images in percent (None without test images)."""

    tasks: list[GroupAccuracy]
    classes: list[GroupAccuracy]
    accuracy: float | None

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serializable dict with the keys of `itl learn --json`."""
        return {
            "accuracy": self.accuracy,
            "tasks": [task.to_dict() for task in self.tasks],
            "classes": [group.to_dict() for group in self.classes],
        }


def relative_folder(model: Model, folder: str | os.PathLike[str]) -> str:
    """Return the path from the model folder to an image folder: it stays valid if both are moved together."""
    return os.path.relpath(os.path.realpath(folder), os.path.realpath(model.path))


def recorded_train_only_hashes(model: Model, folder: str) -> dict[str, set[str]]:
    """Return, by class, the hashes of a folder's images that were trained on and must not be held out.

    Args:
        model: The model.
        folder: The image folder as given by `relative_folder`.
    """
    hashes: dict[str, set[str]] = {}
    for entry in model.history:
        if is_lesson(entry) and entry["folder"] == folder:
            for name, some in entry.get("beyond", {}).items():
                hashes.setdefault(name, set()).update(some)
    return hashes


class HeldOutEvaluation:
    """Evaluates a model on the test images of all lessons; each folder's test images are read once."""

    def __init__(self) -> None:
        self.test_images: dict[str, DecodedImages | None] = {}  # by relative folder; None: not available

    def add_test_images(self, folder: str, images: DecodedImages) -> None:
        """Provide the test images of a folder that have been read already."""
        self.test_images[folder] = images

    def evaluate(self, model: Model, current_lesson: tuple[str, str] | None = None) -> HeldOutScores:
        """Return the accuracy on all lessons of the history.

        Args:
            model: The model. If a lesson is not in the history yet, the model is calibrated on all test images.
            current_lesson: Relative folder and name of a lesson that is not in the history yet; it comes last.
        """
        lessons = [(folder, entry["name"], entry) for folder, entry in last_entries(model).items()]
        if current_lesson is not None:
            lessons = [lesson for lesson in lessons if lesson[0] != current_lesson[0]]
            lessons.append((*current_lesson, {}))
        available = [self._images(model, folder, entry) for folder, _, entry in lessons]
        parts = [
            None if images is None or not len(images) else model.outputs(images.pixels, remember=True)
            for images in available
        ]
        if current_lesson is not None:
            known = [part for part in parts if part is not None] or [Outputs(torch.zeros(0, len(model.output_names)))]
            model.calibrate(Outputs.join(known), [name for images in available if images for name in images.labels])
        tasks = []
        correct, total = dict.fromkeys(model.classes, 0), dict.fromkeys(model.classes, 0)
        for (_, name, entry), images, outputs in zip(lessons, available, parts, strict=True):
            when_taught = entry.get("accuracy", {}).get("task")
            if images is None or outputs is None:
                tasks.append(GroupAccuracy(name, 0, None, when_taught))
                continue
            is_correct = model.predictions(outputs).labels == np.array(images.labels)
            for label, right in zip(images.labels, is_correct, strict=True):
                correct[label] += int(right)
                total[label] += 1
            tasks.append(GroupAccuracy(name, len(images), 100 * float(is_correct.mean()), when_taught))
        classes = [
            GroupAccuracy(name, total[name], _percent(correct[name], total[name]), accuracy_when_taught(model, name))
            for name in model.classes
        ]
        return HeldOutScores(tasks, classes, _percent(sum(correct.values()), sum(total.values())))

    def _images(self, model: Model, folder: str, entry: dict[str, Any]) -> DecodedImages | None:
        """Return a lesson's test images under today's class names, without forgotten classes; None if unavailable."""
        if folder not in self.test_images:
            self.test_images[folder] = None
            if entry.get("tested"):
                with suppress(UserError):  # the folder was moved, or is on another machine
                    train_only = recorded_train_only_hashes(model, folder)
                    lesson = Lesson.from_folder(model.path / folder, train_only=train_only)
                    self.test_images[folder] = lesson.read_test(model.image["size"], interpolation(model))
        images = self.test_images[folder]
        if images is None:
            return None
        names = current_names(model, entry)
        labels = [names.get(label, label) for label in images.labels]
        return DecodedImages(images.pixels, labels).of_classes(set(model.classes))


def last_entries(model: Model) -> dict[str, dict[str, Any]]:
    """Return the last history entry of each folder that was learned."""
    return {entry["folder"]: entry for entry in model.history if is_lesson(entry)}


def current_names(model: Model, entry: dict[str, Any]) -> dict[str, str]:
    """Map the class names of a history entry to today's names, following later renames and merges."""
    names: dict[str, str] = {name: name for name in entry.get("classes", {})}
    start = next((k for k, other in enumerate(model.history) if other is entry), len(model.history))
    for change in model.history[start:]:
        if change["what"] in ("rename", "merge"):
            names = {old: change["new"] if name == change["old"] else name for old, name in names.items()}
    return names


def accuracies_by_lesson(model: Model) -> list[tuple[str, float | None, dict[str, float]]]:
    """Return, for each lesson of the history, its name, the overall accuracy and that of each class, then.

    Accuracies are in percent, and classes have today's names. Classes that were merged later are left out.
    """
    lessons = []
    for entry in model.history:
        if not is_lesson(entry) or "accuracy" not in entry:
            continue
        names, recorded = current_names(model, entry), entry["accuracy"].get("classes", {})
        current = {old: names.get(old, old) for old in recorded}
        classes = {
            new: float(recorded[old])
            for old, new in current.items()
            if new in model.classes and list(current.values()).count(new) == 1
        }
        lessons.append((str(entry.get("name", "")), entry["accuracy"].get("all"), classes))
    return lessons


def fallen_classes(model: Model, scores: HeldOutScores) -> dict[str, tuple[float, float]]:
    """Return accuracy before and after a lesson, in percent, of the classes that lost more than `MAX_FALL` points.

    Args:
        model: The model. The lesson is not in its history yet.
        scores: The accuracies after the lesson.
    """
    lessons = accuracies_by_lesson(model)
    before = lessons[-1][2] if lessons else {}
    return {
        group.name: (before[group.name], group.accuracy)
        for group in scores.classes
        if group.accuracy is not None and before.get(group.name, 0.0) - group.accuracy > MAX_FALL
    }


def accuracy_when_taught(model: Model, name: str) -> float | None:
    """Return a class's accuracy when it was last taught; None if unknown."""
    for entry in reversed(model.history):
        if not is_lesson(entry) or name not in (names := current_names(model, entry)).values():
            continue
        accuracies = entry.get("accuracy", {}).get("classes", {})
        values = [accuracies.get(old) for old, new in names.items() if new == name]
        # For classes that were merged later, no common accuracy was recorded.
        return None if len(values) > 1 or values[0] is None else float(values[0])
    return None


def _percent(part: int, total: int) -> float | None:
    return 100 * part / total if total else None
