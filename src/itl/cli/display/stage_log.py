"""One line per finished stage, for outputs that are not terminals."""

from __future__ import annotations

from typing import Any

import click

from itl.callbacks.base import Callback
from itl.cli.display.formatting import format_percent


class StageLog(Callback):
    """Prints the accuracies that a run records at the end of each stage."""

    def __init__(self, label: str = "") -> None:
        self.prefix = f"{label}: " if label else ""

    def on_record(self, line: dict[str, Any]) -> None:
        """Print the line of a stage's end."""
        if line["kind"] == "end":
            scores = [format_percent(line[key]) for key in ("class_il", "task_il")]
            stage = f"task {line['task']}, {line['stage']}"
            click.echo("{}{}: Class-IL {}, Task-IL {}".format(self.prefix, stage, *scores))
