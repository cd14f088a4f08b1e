"""Live progress of training: finished stages, the current stage and the remaining time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from itl.callbacks.base import Callback
from itl.cli.display.accuracy_plot import PLOT_HEIGHT, Point, accuracy_plot
from itl.cli.display.formatting import format_duration, format_percent
from itl.cli.display.live import LiveDisplay
from itl.cli.display.run_tables import Stages, run_title, stage_table
from itl.learner.remaining_time import EtaEstimator, estimate_run
from itl.learner.stage_estimate import StageEstimate

if TYPE_CHECKING:
    from itl.engine.stage import Stage
    from itl.experiments.run import Config
    from itl.learner import Learner
    from itl.streams import Stream

REFRESH_PER_SECOND = 4
FIXED_LINES = 12  # lines of the display that are not rows of its table
MAX_PLOT_WIDTH = 100  # columns
BAR_WIDTH = 30  # columns


class TrainingDisplay(LiveDisplay, Callback):
    """Base of the displays of `itl run` and `itl learn`: heading, details, current stage, progress bar."""

    def __init__(self, console: Console, heading: Text, activity: str) -> None:
        self.heading, self.activity = heading, activity
        self.eta: EtaEstimator | None = None
        self.stage: tuple[str, int, int] = ("", 0, 0)  # name, epochs done, epochs in total
        self.task, self.loss = 0, float("nan")
        self.started = self.updated = time.monotonic()
        super().__init__(console, REFRESH_PER_SECOND)

    def estimate(self, learner: Learner) -> list[StageEstimate]:
        """The stages to expect; subclasses implement it."""
        raise NotImplementedError

    def show_loading(self, done: int, total: int | None) -> None:
        """Show how much of the data (bytes or images) has been loaded."""
        progress = f"{100 * done / total:.0f} %" if total else f"{done:,}"
        self.activity = f"{self.activity.partition(':')[0]}: {progress}"

    # ------------------------------------------------------------------ events of the learner

    def on_features(self, learner: Learner, done: int, total: int) -> None:
        """Show how many images have gone through the frozen trunk."""
        self.activity = f"features: {done:,} of {total:,} images"

    def on_stage_start(self, learner: Learner, stage: Stage) -> None:
        """Show the stage that starts or resumes."""
        if self.eta is None:
            self.eta = EtaEstimator(self.estimate(learner))
            self.heading.append(f", {learner.engine.device}")
            self.updated = time.monotonic()  # the time spent on loading data says nothing about training speed
        self._update_eta(self.eta.steps)
        start = learner.position[1]
        self.task = len(learner.tasks)
        self.stage = (stage.name, stage.epochs_before(start), stage.epochs)
        self.eta.start_stage(self.task, stage.name, stage.planner.first_step(start))

    def on_round_end(self, learner: Learner, stage: Stage, epoch: int, loss: float) -> None:
        """Update the epoch, the loss and the remaining time."""
        self.stage, self.loss = (stage.name, epoch, self.stage[2]), loss
        self._update_eta(min(stage.planner.total_steps, stage.planner.first_step(learner.position[1])))

    def _update_eta(self, steps: int) -> None:
        now = time.monotonic()
        if self.eta is not None:
            self.eta.update(steps, now - self.updated)
        self.updated = now

    # ------------------------------------------------------------------ contents

    def render(self) -> RenderableType:
        """The whole display."""
        current = self.current_stage() if self.task else Text(self.activity)
        return Group(self.heading, "", *self.details(), current, self._progress_bar())

    def details(self) -> list[RenderableType]:
        """What to show between the heading and the current stage."""
        return []

    def current_stage(self) -> Text:
        """Name, epoch and loss of the current stage."""
        _, epoch, epochs = self.stage
        line = Text.assemble((self.stage_name(), "bold"), f", epoch {epoch} of {epochs}")
        return line.append(f", loss {self.loss:.3g}", "dim") if epoch else line

    def stage_name(self) -> str:
        """The current stage, as it is shown."""
        return self.stage[0]

    def _progress_bar(self) -> Table:
        """The finished fraction, the elapsed time and the remaining time."""
        now = time.monotonic()
        elapsed, remaining = now - self.started, self.eta.remaining() if self.eta is not None else None
        times = f"{format_duration(elapsed)} elapsed"
        if remaining is not None:
            remaining = max(0.0, remaining - (now - self.updated))
            times += f", about {format_duration(remaining)} left"
        fraction = 0.0 if remaining is None else elapsed / max(elapsed + remaining, 1e-9)
        line = Table.grid(padding=(0, 2))
        line.add_row(ProgressBar(1.0, fraction, width=BAR_WIDTH), f"{100 * fraction:3.0f} %", times)
        return line


def scored_tasks(line: dict[str, Any]) -> str:
    """The tasks that recorded accuracies belong to, such as `on tasks 1 to 3`."""
    task = line["task"]
    return "before training" if not task else "on task 1" if task == 1 else f"on tasks 1 to {task}"


class RunDisplay(TrainingDisplay):
    """Live progress of `itl run`. Shows the accuracies that the run records; evaluates nothing itself."""

    def __init__(self, console: Console, config: Config, position: str = "") -> None:
        self.finished: dict[int, Stages] = {}  # by task
        self.scores: dict[str, Any] = {}
        self.points: list[Point] = []
        self.stream: Stream | None = None
        super().__init__(console, run_title(vars(config)).append(position, "dim"), f"loading {config.stream}")

    def set_stream(self, stream: Stream) -> None:
        """The stream is loaded."""
        self.stream, self.activity = stream, "evaluating the untrained network"

    def estimate(self, learner: Learner) -> list[StageEstimate]:
        """All stages of all tasks; also counts the time that a resumed run had already taken."""
        self.started -= sum(learner.timer.seconds.values())
        return estimate_run(learner.settings, [len(task.train) for task in self.stream or ()], learner.buffer)

    def on_record(self, line: dict[str, Any]) -> None:
        """Add accuracies recorded within a stage, at its end, or for the expert."""
        self.scores = line
        position = (line["task"], line["stage"])
        no_curve = line["kind"] == "end" and (not self.points or self.points[-1][:2] != position)
        if line["kind"] in ("start", "curve") or no_curve:
            self.points.append((*position, line["class_il"]))
        if line["kind"] in ("end", "expert") and line["stage"] != "projection":
            self.finished.setdefault(line["task"], {})[line["stage"]] = line

    def details(self) -> list[RenderableType]:
        """The accuracy plot, if the terminal is high enough, and the accuracies of the finished stages."""
        parts: list[RenderableType] = []
        width, height = self.console.size
        has_plot = bool(self.points) and height >= FIXED_LINES + PLOT_HEIGHT + 4
        if has_plot:
            plot = accuracy_plot(list(self.points), min(width, MAX_PLOT_WIDTH))
            parts += [Text("Class-IL on the tasks seen so far, %", "dim"), plot, ""]
        max_rows = max(1, height - FIXED_LINES - (PLOT_HEIGHT + 3 if has_plot else 0))
        rows = [(str(task), dict(stages)) for task, stages in sorted(self.finished.items())[-max_rows:]]
        return [*parts, stage_table(rows), ""] if rows else parts

    def current_stage(self) -> Text:
        """Task, stage, epoch, loss, and the latest accuracies."""
        line = Text(f"task {self.task} of {len(self.stream or ())}, ").append(super().current_stage()).append("\n")
        if self.stage[1] and self.scores:
            scores = [format_percent(self.scores[key]) for key in ("class_il", "task_il")]
            line.append("Class-IL {}, Task-IL {}".format(*scores)).append(f" {scored_tasks(self.scores)}")
            if self.scores["kind"] == "curve":
                line.append(f", epoch {self.scores['epoch']}, a sample of the images", "dim")
        return line
