"""Live progress of `itl learn`, and Ctrl-C without loss."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from itl.cli.display.progress import TrainingDisplay
from itl.learner.eta import estimate_run
from itl.learner.stage_estimate import StageEstimate

if TYPE_CHECKING:
    from itl.apps.teaching import LessonResult, Teacher
    from itl.learner import Learner


class LearnDisplay(TrainingDisplay):
    """Shows how one folder of images is learned."""

    def __init__(self, console: Console, teacher: Teacher, result: LessonResult, position: str) -> None:
        heading = Text.assemble((str(teacher.path), "bold"), f": learning {position}", (result.lesson.name, "bold"))
        super().__init__(console, heading, f"reading {result.lesson.name}")
        self.images = sum(len(files) for files in result.lesson.files.train.values())

    def estimate(self, learner: Learner) -> list[StageEstimate]:
        """The stages of the current task, assuming that earlier tasks have filled the memory."""
        earlier = [learner.memory.size] * (len(learner.tasks) - 1)
        stages = estimate_run(learner.settings, [*earlier, self.images], learner.memory.size)
        return [stage for stage in stages if stage.task == len(learner.tasks)]


class GracefulInterrupt:
    """Handles Ctrl-C: the first asks the training to stop after the current round, the second interrupts at once."""

    def __init__(self, console: Console | None) -> None:
        self.console, self.requested = console, False
        self._previous: Any = None

    def __enter__(self) -> GracefulInterrupt:
        self._previous = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._previous)

    def __call__(self) -> bool:
        """Whether a stop was requested."""
        return self.requested

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        if self.console is not None:
            self.console.print("Stopping and saving. Press Ctrl-C again to stop at once.")
