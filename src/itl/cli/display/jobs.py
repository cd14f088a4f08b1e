"""A live table of the jobs of a sweep or a search."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import click
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from itl.cli.display.formatting import format_duration, format_percent
from itl.cli.display.live import LiveDisplay, live_console
from itl.cli.display.tables import plain_table
from itl.experiments.search.progress import DONE, FAILED, RUNNING, STATE_NAMES, WAITING, JobProgress, ProgressTracker

MAX_FINISHED_ROWS = 12
REFRESH_PER_SECOND = 2


def show_jobs(
    given: dict[str, Any], tracker: ProgressTracker, heading: str, kind: str
) -> AbstractContextManager[object]:
    """A live table of the jobs on a terminal; elsewhere one line per finished job, unless `--json` or `--quiet`."""
    console = live_console(given)
    if console is not None:
        return JobsDisplay(console, tracker, heading, kind)
    if not given.get("as_json") and not given.get("quiet"):
        tracker.on_finish = lambda job: click.echo(job_line(job, tracker))
    return nullcontext()


def job_line(job: JobProgress, tracker: ProgressTracker) -> str:
    """One line about a finished job: how many are finished, its name, accuracies and duration."""
    finished = len(tracker.in_state(DONE)) + len(tracker.in_state(FAILED))
    line = f"{finished} of {len(tracker.jobs)}: {job.name}: {_status(job)}"
    scores = [(name, job.line.get(key)) for name, key in (("Class-IL", "class_il"), ("Task-IL", "task_il"))]
    line += "".join(f", {name} {format_percent(value)}" for name, value in scores if value is not None)
    return line if job.seconds is None else f"{line}, {format_duration(job.seconds)}"


class JobsDisplay(LiveDisplay):
    """Shows failed, running and the latest finished jobs. `kind` is what a job is: a run or a trial."""

    def __init__(self, console: Console, tracker: ProgressTracker, heading: str, kind: str) -> None:
        self.tracker, self.heading, self.kind = tracker, heading, kind
        super().__init__(console, REFRESH_PER_SECOND)

    def render(self) -> RenderableType:
        """The counts, then the table."""
        elapsed = format_duration(time.monotonic() - self.tracker.started)
        workers = f", {self.tracker.workers} at a time" if self.tracker.workers > 1 else ""
        counts = self.tracker.summary or "starting"
        summary = Text.assemble((self.heading, "bold"), f": {counts}{workers}, {elapsed} elapsed")
        done = [job for job in self.tracker.in_state(DONE) if job.ended is not None]
        done.sort(key=lambda job: job.ended or 0.0)
        rows = [
            *self.tracker.in_state(FAILED)[:MAX_FINISHED_ROWS],
            *self.tracker.in_state(RUNNING),
            *reversed(done[-MAX_FINISHED_ROWS:]),
        ]
        max_rows = max(3, self.console.size.height - 6)
        return Group(summary, "", jobs_table(rows[:max_rows], self.kind))


def jobs_table(jobs: list[JobProgress], kind: str) -> Table:
    """One row per job: its name, status, accuracies and duration."""
    table = plain_table()
    for heading in (kind, "status", "Class-IL", "Task-IL", "time"):
        text = heading in (kind, "status")
        table.add_column(heading, justify="left" if text else "right", no_wrap=heading != "status")
    for job in jobs:
        scores = [format_percent(job.line.get(key)) for key in ("class_il", "task_il")]
        table.add_row(job.name, _status(job), *scores, "" if job.seconds is None else format_duration(job.seconds))
    return table


def _status(job: JobProgress) -> str:
    if job.state == FAILED:
        return f"failed: {job.error}"
    if job.state in (RUNNING, WAITING) and job.line.get("stage"):
        position = f"task {job.line['task']}, {job.line['stage']}, epoch {job.line['epoch']}"
        return position if job.state == RUNNING else f"stopped after {position}"
    state = job.line.get("state", job.state) if job.state == DONE else job.state
    return STATE_NAMES.get(state, str(state))
