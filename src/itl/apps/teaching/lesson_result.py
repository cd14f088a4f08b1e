"""The result of teaching one lesson."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from itl.apps.images import SkippedPath, printable_path
from itl.apps.teaching.lesson import Lesson


@dataclass
class LessonResult:
    """The result of one lesson; filled by `Teacher.teach`.

    Attributes:
        lesson: The lesson.
        learned: Whether it was learned.
        skip_reason: Why it was not learned; empty otherwise.
        train_counts: Number of training images by class.
        test_counts: Number of test images by class.
        new_classes: Classes that the model did not know before.
        dropped_classes: Classes of which the memory holds no image any more.
        memory_growth: The memory's size before and after, if it grew to hold all classes.
        fallen_classes: Held-out accuracy before and after the lesson of classes that lost more than 5 points.
        replayed: Number of images of earlier folders that were learned again, besides those in memory.
        time_limit_reached: Whether the time for a lesson ended its training before it stopped improving.
        skipped: Files and folders that were skipped, with reasons.
        seconds: Time spent on reading, training and evaluation.
    """

    lesson: Lesson
    learned: bool = False
    skip_reason: str = ""
    train_counts: dict[str, int] = field(default_factory=dict)
    test_counts: dict[str, int] = field(default_factory=dict)
    new_classes: list[str] = field(default_factory=list)
    dropped_classes: list[str] = field(default_factory=list)
    memory_growth: tuple[int, int] | None = None
    fallen_classes: dict[str, tuple[float, float]] = field(default_factory=dict)
    replayed: int = 0
    time_limit_reached: bool = False
    skipped: list[SkippedPath] = field(default_factory=list)
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serializable dict with the keys of `itl learn --json`."""
        return {
            "folder": printable_path(self.lesson.folder),
            "learned": self.learned,
            "why_not": self.skip_reason or None,
            "train": self.train_counts,
            "test": self.test_counts,
            "new_classes": self.new_classes,
            "memory_dropped": self.dropped_classes,
            "memory_grown": self.memory_growth,
            "fallen": {name: {"before": old, "after": new} for name, (old, new) in self.fallen_classes.items()},
            "replayed": self.replayed,
            "time_limit_reached": self.time_limit_reached,
            "problems": skipped_as_dicts(self.skipped),
            "seconds": round(self.seconds, 3),
        }


def skipped_as_dicts(skipped: list[SkippedPath]) -> list[dict[str, str]]:
    """Return skipped paths as the JSON output of the commands lists them."""
    return [{"path": printable_path(path.path), "why": path.reason} for path in skipped]
