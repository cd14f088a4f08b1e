"""One line per finished stage and task, for logs and batch systems."""

from __future__ import annotations

import time
from typing import Any

import click

from itl.callbacks.base import Callback
from itl.cli.display.formatting import format_duration, format_percent


class StageLog(Callback):
    """Prints the accuracies that a run records at the end of each stage and of each task."""

    def __init__(self, label: str = "") -> None:
        self.prefix = f"{label}: " if label else ""
        self.started = time.monotonic()

    def on_record(self, line: dict[str, Any]) -> None:
        """Print the line of a stage's or a task's end."""
        if line["kind"] not in ("end", "expert"):
            return
        scores = "Class-IL {}, Task-IL {}".format(*(format_percent(line[key]) for key in ("class_il", "task_il")))
        position = f"task {line['task']} of {len(line['class_il_tasks'])}"
        if line["kind"] == "end":
            click.echo(f"{self.prefix}{position}, {line['stage']}: {scores}")
        else:
            elapsed = format_duration(time.monotonic() - self.started)
            click.echo(f"{self.prefix}{position} done: {scores}, {elapsed} elapsed")
