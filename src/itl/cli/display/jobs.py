"""Many pieces of work as they go: what runs, and how many are done, wait and have failed."""

from __future__ import annotations

import time

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from itl.cli.display.run_tables import clock, percent, plain_table
from itl.cli.display.screen import Screen
from itl.experiments.search.progress import Board, Entry

SHOWN = 12  # rows of what is done


class BoardView(Screen):
    """A live table of a board, where there is a terminal to show it on."""

    def __init__(self, console: Console, board: Board, heading: str, what: str) -> None:
        self.board, self.heading, self.what = board, heading, what
        super().__init__(console, 2)

    def render(self) -> RenderableType:
        """The whole display: what failed, what runs, the latest that are done."""
        spent = clock(time.monotonic() - self.board.begun)
        side = f", {self.board.workers} at once" if self.board.workers > 1 else ""
        counts = Text.assemble((self.heading, "bold"), f": {self.board.count or 'nothing yet'}; {spent}{side}")
        done = sorted((e for e in self.board.of("done") if e.ended is not None), key=lambda e: e.ended or 0.0)
        room = max(3, self.console.size.height - 6)
        rows = [*self.board.of("failed")[:SHOWN], *self.board.of("runs"), *reversed(done[-SHOWN:])]
        return Group(counts, "", board_table(rows[:room], self.what))


def board_table(entries: list[Entry], what: str) -> Table:
    """A row for each: its name, how far it is, what it reached, how long it took."""
    table = plain_table()
    for name in (what, "now", "Class-IL", "Task-IL", "time"):
        table.add_column(name, justify="left" if name in (what, "now") else "right", no_wrap=name != "now")
    for entry in entries:
        seconds = entry.seconds
        scores = [percent(entry.line.get(key)) for key in ("class_il", "task_il")]
        table.add_row(entry.name, _now(entry), *scores, "" if seconds is None else clock(seconds))
    return table


def _now(entry: Entry) -> str:
    if entry.state == "failed":
        return f"failed: {entry.error}"
    if entry.state == "runs" and entry.line.get("stage"):
        return f"task {entry.line['task']}  {entry.line['stage']}  epoch {entry.line['epoch']}"
    return str(entry.line.get("state", entry.state)) if entry.state == "done" else entry.state
