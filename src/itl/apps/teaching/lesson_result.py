"""What became of a lesson."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from itl.apps.images import SkippedPath, printable_path
from itl.apps.teaching.lesson import Lesson


@dataclass
class LessonResult:
    """A lesson and what was made of it: `why` it was not learned, or its images by class, what is new and what went."""

    lesson: Lesson
    learned: bool = False
    skip_reason: str = ""
    train_counts: dict[str, int] = field(default_factory=dict)
    test_counts: dict[str, int] = field(default_factory=dict)
    new_classes: list[str] = field(default_factory=list)  # classes
    dropped_classes: list[str] = field(default_factory=list)  # classes that the memory holds no image of
    memory_growth: tuple[int, int] | None = None  # the memory's size before and after
    skipped: list[SkippedPath] = field(default_factory=list)
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "folder": printable_path(self.lesson.folder),
            "learned": self.learned,
            "why_not": self.skip_reason or None,
            "train": self.train_counts,
            "test": self.test_counts,
            "new_classes": self.new_classes,
            "memory_dropped": self.dropped_classes,
            "memory_grown": self.memory_growth,
            "problems": [{"path": printable_path(p.path), "why": p.reason} for p in self.skipped],
            "seconds": round(self.seconds, 3),
        }
