"""Learning as it goes: what is known so far, the present stage below it, and the time left."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from itl.callbacks.base import Callback
from itl.cli.display.accuracy_plot import HEIGHT, Point, curve
from itl.cli.display.eta import Outlook, legs
from itl.cli.display.run_tables import Stages, clock, percent, stage_table, title
from itl.cli.display.screen import Screen
from itl.learner.stage_estimate import StageEstimate

if TYPE_CHECKING:
    from itl.engine.stage import Stage
    from itl.experiments.run import Config
    from itl.learner import Learner
    from itl.streams import Stream

A_SECOND = 4  # redraws; a thread of its own does them, so that the run never waits for a terminal
AROUND = 12  # lines that are not rows
WIDE = 100  # columns, at most, of the curve


class Progress(Screen, Callback):
    """Shows learning on a terminal: a heading, the present stage, a bar with the time left. Subclasses say what of."""

    def __init__(self, console: Console, heading: Text, note: str) -> None:
        self.heading, self.note = heading, note
        self.outlook: Outlook | None = None
        self.stage: tuple[str, int, int] = ("", 0, 0)  # name, epochs done, of how many
        self.task, self.loss = 0, float("nan")
        self.begun = self.mark = time.monotonic()
        super().__init__(console, A_SECOND)

    def legs(self, learner: Learner) -> list[StageEstimate]:
        """What there is to do, as far as it is known."""
        raise NotImplementedError

    def loads(self, done: int, total: int | None) -> None:
        """Files are being fetched or images decoded: bytes or images, `done` of `total`."""
        share = f"{100 * done / total:.0f} %" if total else f"{done:,}"
        self.note = f"{self.note.partition(':')[0]}: {share}"

    # ------------------------------------------------------------------ what the learner tells

    def stage_begins(self, learner: Learner, stage: Stage) -> None:
        """Take up the stage where it stands."""
        if self.outlook is None:
            self.outlook = Outlook(self.legs(learner))
            self.heading.append(f", {learner.engine.device}")
            self.mark = time.monotonic()  # reading the data tells nothing about the pace of a step
        self._advance(self.outlook.steps)
        start, rounds = learner.position[1], stage.planner
        self.task = len(learner.tasks)
        self.stage = (
            stage.name,
            rounds.epochs_done(start - 1) if start else 0,
            rounds.epochs_done(rounds.num_rounds - 1),
        )
        self.outlook.begins(self.task, stage.name, rounds.first_step(start))

    def round_ends(self, learner: Learner, stage: Stage, epoch: int, loss: float) -> None:
        """Some epochs are done."""
        self.stage, self.loss = (stage.name, epoch, self.stage[2]), loss
        self._advance(min(stage.planner.total_steps, stage.planner.first_step(learner.position[1])))

    def _advance(self, steps: int) -> None:
        now = time.monotonic()
        if self.outlook is not None:
            self.outlook.advances(steps, now - self.mark)
        self.mark = now

    # ------------------------------------------------------------------ what is seen

    def render(self) -> RenderableType:
        """The whole display."""
        return Group(self.heading, "", *self.body(), self.now() if self.task else Text(self.note), self._bar())

    def body(self) -> list[RenderableType]:
        """What is known so far."""
        return []

    def now(self) -> Text:
        """The present stage."""
        name, epoch, epochs = self.stage
        out = Text.assemble((name, "bold"), f"  epoch {epoch} of {epochs}")
        return out.append(f"  loss {self.loss:.3g}", "dim") if epoch else out

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


class Display(Progress):
    """Shows a run. It evaluates nothing: accuracies are those the run's record hears of."""

    def __init__(self, console: Console, config: Config, several: str = "") -> None:
        self.rows: dict[int, Stages] = {}
        self.scores: dict[str, Any] = {}
        self.points: list[Point] = []  # of the curve so far
        self.stream: Stream | None = None
        super().__init__(console, title(vars(config)).append(several, "dim"), f"reading {config.stream}")

    def loaded(self, stream: Stream) -> None:
        """The stream is there."""
        self.stream, self.note = stream, "evaluating the untrained network"

    def legs(self, learner: Learner) -> list[StageEstimate]:
        """Every stage of every task; and the time an interrupted run had taken already is counted."""
        self.begun -= sum(learner.clock.seconds.values())
        sizes = [len(task.train) for task in self.stream or ()]
        return legs(learner.settings, sizes, learner.buffer)

    def recorded(self, line: dict[str, Any]) -> None:
        """Accuracies: within a stage, at its end, or of the expert."""
        self.scores = line
        where = (line["task"], line["stage"])
        bare = line["kind"] == "end" and (not self.points or self.points[-1][:2] != where)  # a stage without a curve
        if line["kind"] in ("start", "curve") or bare:
            self.points.append((*where, line["class_il"]))
        if line["kind"] in ("end", "expert") and line["stage"] != "projection":
            self.rows.setdefault(line["task"], {})[line["stage"]] = line

    def body(self) -> list[RenderableType]:
        """The curve so far, where the terminal is high enough, and the finished stages' accuracies."""
        parts: list[RenderableType] = []
        width, height = self.console.size
        drawn = bool(self.points) and height >= AROUND + HEIGHT + 4
        if drawn:
            parts += [Text("Class-IL over the tasks seen, %", "dim"), curve(list(self.points), min(width, WIDE)), ""]
        fit = max(1, height - AROUND - (HEIGHT + 3 if drawn else 0))
        rows = [(str(task), dict(stages)) for task, stages in sorted(self.rows.items())[-fit:]]
        return [*parts, stage_table(rows), ""] if rows else parts

    def now(self) -> Text:
        """Task, stage, epoch, and how well it does."""
        name, epoch, epochs = self.stage
        of = f"task {self.task} of {len(self.stream or ())}  "
        out = Text.assemble(of, (name, "bold"), f"  epoch {epoch} of {epochs}")
        if epoch and self.scores:
            out.append(f"  loss {self.loss:.3g}\n", "dim")
            out.append(f"Class-IL {percent(self.scores['class_il'])}  Task-IL {percent(self.scores['task_il'])}")
            if self.scores["kind"] == "curve":
                out.append(f"  at epoch {self.scores['epoch']}, on some of the images", "dim")
        else:
            out.append("\n")
        return out
