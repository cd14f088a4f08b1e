"""Live progress of `itl learn`, and safe interruption by Ctrl-C."""

from __future__ import annotations

import signal
import time
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from itl.callbacks.base import Callback
from itl.cli.display.formatting import format_duration, plural, shorten
from itl.cli.display.progress import TrainingDisplay
from itl.cli.output import echo
from itl.learner.remaining_time import estimate_task
from itl.learner.stage_estimate import StageEstimate
from itl.learner.validation import STAGE_PHRASES

if TYPE_CHECKING:
    from itl.apps.teaching import LessonResult, Teacher
    from itl.engine.stage import Stage
    from itl.learner import Learner


def stage_words(name: str) -> str:
    """A stage in plain words."""
    return STAGE_PHRASES.get(name, name)


class LearnLog(Callback):
    """Prints one line per finished stage, for outputs that are not a terminal."""

    def __init__(self, name: str) -> None:
        self.name, self.started = shorten(name), time.monotonic()
        self.features = 0

    def on_features(self, learner: Learner, done: int, total: int) -> None:
        """Print a line when the features of all images are known."""
        if done == total != self.features:
            self.features = total
            self._print(f"features of {plural(total, 'image')}")

    def on_stage_start(self, learner: Learner, stage: Stage) -> None:
        """Start to measure the stage's time."""
        self.started = time.monotonic()

    def on_stage_end(self, learner: Learner, stage: Stage) -> None:
        """Print the stage, its epochs and its time."""
        epochs = plural(stage.summary.get("epochs", stage.epochs), "epoch")
        early = f" ({stage.summary['measure']} stopped improving)" if stage.summary.get("measure") else ""
        self._print(f"{stage_words(stage.name)}, {epochs}{early if stage.summary.get('stopped') else ''}")

    def _print(self, what: str) -> None:
        echo(f"{self.name}: {what}, {format_duration(time.monotonic() - self.started)}")
        self.started = time.monotonic()


class LearnDisplay(TrainingDisplay):
    """Shows how one folder of images is learned."""

    def __init__(self, console: Console, teacher: Teacher, result: LessonResult, position: str) -> None:
        heading = Text.assemble((str(teacher.path), "bold"), f": learning {position}", (result.lesson.name, "bold"))
        super().__init__(console, heading, f"reading {result.lesson.name}")
        self.images = sum(len(files) for files in result.lesson.files.train.values())

    def stage_name(self) -> str:
        """The current stage in plain words."""
        return stage_words(self.stage[0])

    def estimate(self, learner: Learner) -> list[StageEstimate]:
        """The stages of the current task."""
        return estimate_task(learner, self.images)


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
