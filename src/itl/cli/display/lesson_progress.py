"""A learn as it goes: what is being learned, how far it is, the time left; and a stop that loses nothing."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from itl.cli.display.eta import legs
from itl.cli.display.progress import Progress
from itl.learner.stage_estimate import StageEstimate

if TYPE_CHECKING:
    from itl.apps.teaching import LessonResult, Teacher
    from itl.learner import Learner


class Lessons(Progress):
    """Shows one lesson on a terminal."""

    def __init__(self, console: Console, teacher: Teacher, result: LessonResult, which: str) -> None:
        heading = Text.assemble((str(teacher.path), "bold"), f" learns {which}", (result.lesson.name, "bold"))
        super().__init__(console, heading, f"reading {result.lesson.name}")
        self.images = sum(len(files) for files in result.lesson.files.train.values())

    def legs(self, learner: Learner) -> list[StageEstimate]:
        """The stages of the present task; what came before it is taken to have filled the memory."""
        before = [learner.memory.size] * (len(learner.tasks) - 1)
        every = legs(learner.settings, [*before, self.images], learner.memory.size)
        return [leg for leg in every if leg.task == len(learner.tasks)]


class Stop:
    """Ctrl-C as a question: the first is answered at the end of the round, the second interrupts at once."""

    def __init__(self, console: Console | None) -> None:
        self.console, self.asked = console, False
        self._before: Any = None

    def __enter__(self) -> Stop:
        self._before = signal.signal(signal.SIGINT, self._ask)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._before)

    def __call__(self) -> bool:
        """Whether to stop."""
        return self.asked

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        if self.console is not None:
            self.console.print("stopping when this round is done; Ctrl-C again stops at once")
