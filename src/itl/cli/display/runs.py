"""Runs side by side as they go: a row each."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from itl.callbacks.base import Callback
from itl.cli.display.labels import which
from itl.cli.display.run_tables import clock, percent, plain_table
from itl.cli.display.screen import Screen

if TYPE_CHECKING:
    from itl.engine.stage import Stage
    from itl.experiments.config import Config
    from itl.learner import Learner


class Row(Callback):
    """What is known of one run."""

    def __init__(self, name: str) -> None:
        self.name, self.state = name, "waits"
        self.begun: float | None = None
        self.ended: float | None = None
        self.scores: dict[str, Any] = {}

    def stage_begins(self, learner: Learner, stage: Stage) -> None:
        """The run has begun, or goes on."""
        self.begun = self.begun or time.monotonic()
        self._now(learner, stage, 0)

    def round_ends(self, learner: Learner, stage: Stage, epoch: int, loss: float) -> None:
        """Some epochs are done."""
        self._now(learner, stage, epoch)

    def recorded(self, line: dict[str, Any]) -> None:
        """Accuracies of the record; a run that is over tells its own."""
        self.scores = line

    def task_ends(self, learner: Learner) -> None:
        """One task more."""
        self.state, self.ended = f"task {len(learner.tasks)} done", time.monotonic()

    def _now(self, learner: Learner, stage: Stage, epoch: int) -> None:
        last = stage.planner.epochs_done(stage.planner.num_rounds - 1)
        self.state = f"task {len(learner.tasks)}  {stage.name}  epoch {epoch} of {last}"

    def cells(self) -> tuple[str, ...]:
        """The row's text."""
        scores = [percent(self.scores.get(key)) for key in ("class_il", "task_il")]
        spent = "" if self.begun is None else clock((self.ended or time.monotonic()) - self.begun)
        return (self.name, self.state, *scores, spent)


class Abreast(Screen):
    """A live table of runs."""

    def __init__(self, console: Console, configs: Sequence[Config], lanes: int) -> None:
        sizes = {config.buffer for config in configs}
        self.rows = [Row(which(config, cell=len(sizes) > 1)) for config in configs]
        first = configs[0]
        self.heading = Text.assemble((first.method, "bold"), f" on {first.stream}, {lanes} runs side by side")
        super().__init__(console, 2)

    def render(self) -> RenderableType:
        """The whole display."""
        return Group(self.heading, "", self._table())

    def _table(self) -> Table:
        table = plain_table()
        for name in ("run", "now", "Class-IL", "Task-IL", "time"):
            table.add_column(name, justify="left" if name in ("run", "now") else "right", no_wrap=True)
        for row in self.rows:
            table.add_row(*row.cells())
        return table
