"""A live table of runs that train at the same time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.text import Text

from itl.callbacks.base import Callback
from itl.cli.display.formatting import format_duration, format_percent, run_label
from itl.cli.display.live import LiveDisplay
from itl.cli.display.tables import plain_table

if TYPE_CHECKING:
    from itl.engine.stage import Stage
    from itl.experiments.config import Config
    from itl.learner import Learner

REFRESH_PER_SECOND = 2


class RunStatus(Callback):
    """The status of one run, kept up to date by its learner's events."""

    def __init__(self, name: str) -> None:
        self.name, self.state = name, "waiting"
        self.started: float | None = None
        self.ended: float | None = None
        self.scores: dict[str, Any] = {}

    def on_stage_start(self, learner: Learner, stage: Stage) -> None:
        """A stage starts or resumes."""
        self.started = self.started or time.monotonic()
        self._set_epoch(learner, stage, 0)

    def on_round_end(self, learner: Learner, stage: Stage, epoch: int, loss: float) -> None:
        """Update the epoch."""
        self._set_epoch(learner, stage, epoch)

    def on_record(self, line: dict[str, Any]) -> None:
        """Show the accuracies that the run has just recorded."""
        self.scores = line

    def on_task_end(self, learner: Learner) -> None:
        """Show that the task is finished."""
        self.state, self.ended = f"task {len(learner.tasks)} done", time.monotonic()

    def _set_epoch(self, learner: Learner, stage: Stage, epoch: int) -> None:
        self.state = f"task {len(learner.tasks)}, {stage.name}, epoch {epoch} of {stage.epochs}"

    def cells(self) -> tuple[str, ...]:
        """The cells of the run's row."""
        scores = [format_percent(self.scores.get(key)) for key in ("class_il", "task_il")]
        elapsed = "" if self.started is None else format_duration((self.ended or time.monotonic()) - self.started)
        return (self.name, self.state, *scores, elapsed)


class RunsDisplay(LiveDisplay):
    """One row per run. `runs[k]` must be among the callbacks of run k."""

    def __init__(self, console: Console, configs: Sequence[Config], runs_per_gpu: int) -> None:
        several_buffers = len({config.buffer for config in configs}) > 1
        self.runs = [RunStatus(run_label(config, with_buffer=several_buffers)) for config in configs]
        first = configs[0]
        self.heading = Text.assemble((first.method, "bold"), f" on {first.stream}, {runs_per_gpu} runs at a time")
        super().__init__(console, REFRESH_PER_SECOND)

    def render(self) -> RenderableType:
        """The heading and the table."""
        table = plain_table("run", "status", "Class-IL", "Task-IL", "time", left=2)
        for run in self.runs:
            table.add_row(*run.cells())
        return Group(self.heading, "", table)
