"""How well a model knows what it was taught: every lesson's test images, now and when they were learned."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from itl.apps.model import Model
from itl.apps.teaching.lesson import LabeledImages, Lesson
from itl.errors import UserError


@dataclass(frozen=True)
class GroupAccuracy:
    """Accuracy (percent) of a task or class, now and when it was last taught; None without test images."""

    name: str
    images: int
    accuracy: float | None
    accuracy_when_taught: float | None = None

    @property
    def forgotten(self) -> float | None:
        """Accuracy lost since the group was last taught, in percentage points; None if either is unknown."""
        if self.accuracy is None or self.accuracy_when_taught is None:
            return None
        return self.accuracy_when_taught - self.accuracy

    def to_dict(self) -> dict[str, Any]:
        """Return the fields under the keys that `itl learn --json` prints."""
        return {
            "name": self.name,
            "images": self.images,
            "now": self.accuracy,
            "was": self.accuracy_when_taught,
            "forgotten": self.forgotten,
        }


@dataclass(frozen=True)
class HeldOutScores:
    """Grades by task (lesson) and by class, and over all test images."""

    tasks: list[GroupAccuracy]
    classes: list[GroupAccuracy]
    accuracy: float | None

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "accuracy": self.accuracy,
            "tasks": [grade.to_dict() for grade in self.tasks],
            "classes": [grade.to_dict() for grade in self.classes],
        }


def relative_folder(model: Model, folder: str | os.PathLike[str]) -> str:
    """A lesson's place as it is kept: seen from the model, so that both can move together."""
    return os.path.relpath(os.path.realpath(folder), os.path.realpath(model.path))


def lessons(model: Model) -> dict[str, dict[str, Any]]:
    """What was learned, by place: its last entry in the history."""
    return {str(e["folder"]): e for e in model.history if e["what"] == "learn" and "folder" in e}


def train_only_hashes(model: Model, place: str) -> dict[str, set[str]]:
    """By class, the marks of a folder's images that were learned and are therefore never held out."""
    out: dict[str, set[str]] = {}
    for entry in model.history:
        if entry["what"] == "learn" and entry.get("folder") == place:
            for name, marks in entry.get("beyond", {}).items():
                out.setdefault(name, set()).update(marks)
    return out


def renamed(model: Model, entry: dict[str, Any]) -> dict[str, str]:
    """What the classes of a lesson are called today, where they were renamed or merged after it."""
    out: dict[str, str] = {name: name for name in entry.get("classes", {})}
    since = next((k for k, e in enumerate(model.history) if e is entry), len(model.history))
    for change in model.history[since:]:
        if change["what"] in ("rename", "merge"):
            out = {first: change["new"] if name == change["old"] else name for first, name in out.items()}
    return out


class HeldOutEvaluation:
    """Test images, read once, however often the model sits for them."""

    def __init__(self) -> None:
        self.parts: dict[str, LabeledImages | None] = {}

    def bring(self, place: str, part: LabeledImages) -> None:
        """The test images of the lesson at hand."""
        self.parts[place] = part

    def hold(self, model: Model, present: tuple[str, str] | None = None) -> HeldOutScores:
        """Examine on all that was learned, and last on the lesson `present` (place, name), not in the history yet."""
        taught = [(place, str(e.get("name", place)), e) for place, e in lessons(model).items()]
        if present is not None:
            taught = [one for one in taught if one[0] != present[0]]
            taught.append((*present, {}))
        tasks, rights, seen = [], dict.fromkeys(model.classes, 0), dict.fromkeys(model.classes, 0)
        for place, name, entry in taught:
            part, was = self._part(model, place, entry), entry.get("accuracy", {}).get("task")
            if part is None or not len(part):
                tasks.append(GroupAccuracy(name, 0, None, was))
                continue
            right = self._right(model, part)
            for label, good in zip(part.labels, right, strict=True):
                rights[label] += int(good)
                seen[label] += 1
            tasks.append(GroupAccuracy(name, len(part), 100 * float(right.mean()), was))
        classes = [
            GroupAccuracy(
                name, seen[name], 100 * rights[name] / seen[name] if seen[name] else None, self._was(model, name)
            )
            for name in model.classes
        ]
        total = sum(seen.values())
        return HeldOutScores(tasks, classes, 100 * sum(rights.values()) / total if total else None)

    def _part(self, model: Model, place: str, entry: dict[str, Any]) -> LabeledImages | None:
        """A lesson's test images of the classes that are known, if the folder is still there."""
        if place not in self.parts:
            self.parts[place] = None
            if entry.get("tested"):
                with suppress(UserError):  # moved, or on another machine
                    lesson = Lesson.of(model.path / place, learned=train_only_hashes(model, place))
                    self.parts[place] = lesson.read_test(model.image["size"])
        part = self.parts[place]
        if part is None:
            return None
        names = renamed(model, entry)
        return LabeledImages(part.pixels, [names.get(label, label) for label in part.labels]).of(set(model.classes))

    def _right(self, model: Model, part: LabeledImages) -> np.ndarray:
        places = {name: place for place, name in enumerate(model.classes)}
        predicted = model.predict_proba(part.pixels).argmax(1)
        right: np.ndarray = predicted == np.array([places[label] for label in part.labels])
        return right

    def _was(self, model: Model, name: str) -> float | None:
        """A class's accuracy when it was last taught."""
        for entry in reversed(model.history):
            if entry["what"] != "learn" or name not in (names := renamed(model, entry)).values():
                continue
            grades = entry.get("accuracy", {}).get("classes", {})
            values = [grades.get(old) for old, new in names.items() if new == name]
            # Of classes that were merged since then, no accuracy as one is known.
            return None if len(values) > 1 or values[0] is None else float(values[0])
        return None
