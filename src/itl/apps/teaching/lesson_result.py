"""What became of a lesson."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from itl.apps.images import Problem, shown
from itl.apps.teaching.lesson import Lesson


@dataclass
class LessonResult:
    """A lesson and what was made of it: `why` it was not learned, or its images by class, what is new and what went."""

    lesson: Lesson
    learned: bool = False
    why: str = ""
    train: dict[str, int] = field(default_factory=dict)
    test: dict[str, int] = field(default_factory=dict)
    new: list[str] = field(default_factory=list)  # classes
    dropped: list[str] = field(default_factory=list)  # classes that the memory holds no image of
    grown: tuple[int, int] | None = None  # the memory's size before and after
    problems: list[Problem] = field(default_factory=list)
    seconds: float = 0.0

    def asdict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "folder": shown(self.lesson.folder),
            "learned": self.learned,
            "why_not": self.why or None,
            "train": self.train,
            "test": self.test,
            "new_classes": self.new,
            "memory_dropped": self.dropped,
            "memory_grown": self.grown,
            "problems": [{"path": shown(p.path), "why": p.why} for p in self.problems],
            "seconds": round(self.seconds, 3),
        }
