"""How far everything is: what runs, is done, failed. Fed by events, from wherever the work is done."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from itl.experiments.search.jobs import Event


@dataclass
class Entry:
    """What is known of one piece of work."""

    name: str
    state: str = "waits"  # then runs, done, failed
    line: dict[str, Any] = field(default_factory=dict)  # the last of the record, or its result
    error: str = ""
    begun: float | None = None
    ended: float | None = None

    @property
    def seconds(self) -> float | None:
        """Since it was begun here, until it ended."""
        return None if self.begun is None else (self.ended or time.monotonic()) - self.begun


class Board:
    """All entries, in order of appearance."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self.entries = {name: Entry(name) for name in names}
        self.workers = 0
        self.begun = time.monotonic()

    def take(self, event: Event) -> None:
        """Something has happened."""
        kind, name = event["kind"], event.get("work")
        if kind == "workers":
            self.workers = event["count"]
        if name is None:
            return
        entry = self.entries.setdefault(name, Entry(name))
        if kind == "begins":
            entry.state, entry.begun, entry.error = "runs", time.monotonic(), ""
        elif kind == "line":
            entry.line = event["line"]
        elif kind in ("done", "failed"):
            entry.state, entry.error = kind, event.get("error") or ""
            entry.line = {key: value for key, value in event.items() if key not in ("kind", "work")} or entry.line
            entry.ended = time.monotonic() if entry.begun is not None else None
        elif kind == "waits":
            entry.state = "waits"

    def of(self, state: str) -> list[Entry]:
        """The entries in a state."""
        return [entry for entry in self.entries.values() if entry.state == state]

    @property
    def count(self) -> str:
        """`3 done, 2 run, 7 wait`, with what failed."""
        words = {"done": "done", "runs": "running", "waits": "waiting", "failed": "failed"}
        counts = [(len(self.of(state)), word) for state, word in words.items()]
        return ", ".join(f"{count} {word}" for count, word in counts if count)
