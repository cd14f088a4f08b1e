"""A run as it goes: finished stages as rows, the present one below them, and the time left."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from itl.cli.outlook import Outlook, legs
from itl.cli.tables import Stages, clock, percent, stage_table, title
from itl.observer import Observer

if TYPE_CHECKING:
    from itl.engine.loop import Stage
    from itl.learner import Learner
    from itl.run import Config
    from itl.streams import Stream

A_SECOND = 4  # redraws; a thread of its own does them, so that the run never waits for a terminal
AROUND = 12  # lines that are not rows


class Display(Observer):
    """Shows a run on a terminal. It evaluates nothing: accuracies are those the run's record hears of."""

    def __init__(self, console: Console, config: Config, several: str = "") -> None:
        self.console, self.heading = console, title(vars(config)).append(several, "dim")
        self.rows: dict[int, Stages] = {}
        self.scores: dict[str, Any] = {}
        self.stream: Stream | None = None
        self.note = f"reading {config.stream}"
        self.outlook: Outlook | None = None
        self.stage: tuple[str, int, int] = ("", 0, 0)  # name, epochs done, of how many
        self.task, self.loss = 0, float("nan")
        self.begun = self.mark = time.monotonic()
        self.live = Live(get_renderable=self.render, console=console, refresh_per_second=A_SECOND, transient=True)

    def __enter__(self) -> Display:
        self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.live.stop()

    def loads(self, done: int, total: int | None) -> None:
        """Files are being fetched or images decoded: bytes or images, `done` of `total`."""
        share = f"{100 * done / total:.0f} %" if total else f"{done:,}"
        self.note = f"{self.note.partition(':')[0]}: {share}"

    def loaded(self, stream: Stream) -> None:
        """The stream is there."""
        self.stream, self.note = stream, "evaluating the untrained network"

    # ------------------------------------------------------------------ what the run tells

    def stage_begins(self, learner: Learner, stage: Stage) -> None:
        """Take up the stage where it stands."""
        if self.outlook is None and self.stream is not None:
            sizes = [len(task.train) for task in self.stream]
            self.outlook = Outlook(legs(learner.settings, sizes, learner.buffer))
            self.begun -= sum(learner.clock.seconds.values())  # what an interrupted run had taken already
            self.heading.append(f", {learner.engine.device}")
            self.mark = time.monotonic()  # reading the data tells nothing about the pace of a step
        self._advance(self.outlook.steps if self.outlook else 0)
        start, rounds = learner.position[1], stage.rounds
        self.task = len(learner.tasks)
        self.stage = (stage.name, rounds.epoch(start - 1) if start else 0, rounds.epoch(rounds.count - 1))
        if self.outlook is not None:
            self.outlook.begins(self.task, stage.name, rounds.first(start))

    def round_ends(self, learner: Learner, stage: Stage, epoch: int, loss: float) -> None:
        """Some epochs are done."""
        self.stage, self.loss = (stage.name, epoch, self.stage[2]), loss
        self._advance(min(stage.rounds.total, stage.rounds.first(learner.position[1])))

    def recorded(self, line: dict[str, Any]) -> None:
        """Accuracies: within a stage, at its end, or of the expert."""
        self.scores = line
        if line["kind"] in ("end", "expert") and line["stage"] != "projection":
            self.rows.setdefault(line["task"], {})[line["stage"]] = line

    def _advance(self, steps: int) -> None:
        now = time.monotonic()
        if self.outlook is not None:
            self.outlook.advances(steps, now - self.mark)
        self.mark = now

    # ------------------------------------------------------------------ what is seen

    def render(self) -> RenderableType:
        """The whole display."""
        parts: list[RenderableType] = [self.heading, ""]
        fit = max(1, self.console.size.height - AROUND)
        rows = [(str(task), dict(stages)) for task, stages in sorted(self.rows.items())[-fit:]]
        if rows:
            parts += [stage_table(rows), ""]
        return Group(*parts, self._now(), self._bar())

    def _now(self) -> Text:
        """Task, stage, epoch, and how well it does."""
        if not self.task or self.stream is None:
            return Text(self.note)
        name, epoch, epochs = self.stage
        out = Text.assemble(f"task {self.task} of {len(self.stream)}  ", (name, "bold"), f"  epoch {epoch} of {epochs}")
        if epoch and self.scores:
            out.append(f"  loss {self.loss:.3g}\n", "dim")
            out.append(f"Class-IL {percent(self.scores['class_il'])}  Task-IL {percent(self.scores['task_il'])}")
            if self.scores["kind"] == "curve":
                out.append(f"  at epoch {self.scores['epoch']}, on some of the images", "dim")
        else:
            out.append("\n")
        return out

    def _bar(self) -> Table:
        """The share done, the time since the beginning and the time left."""
        now = time.monotonic()
        elapsed, left = now - self.begun, self.outlook.left() if self.outlook is not None else None
        words = f"{clock(elapsed)} elapsed"
        if left is not None:
            left = max(0.0, left - (now - self.mark))
            words += f", about {clock(left)} left"
        line = Table.grid(padding=(0, 2))
        share = 0.0 if left is None else elapsed / max(elapsed + left, 1e-9)
        line.add_row(ProgressBar(1.0, share, width=30), f"{100 * share:3.0f} %", words)
        return line
