"""Progress of all jobs of a sweep or a search, updated by events from the processes that run them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from itl.experiments.search.jobs import JobEvent

# States of a job, as `itl sweep --json` prints them.
WAITING, RUNNING, DONE, FAILED = "waits", "runs", "done", "failed"
STATE_NAMES = {DONE: "done", RUNNING: "running", WAITING: "waiting", FAILED: "failed"}


@dataclass
class JobProgress:
    """State of one job, with its latest line of metrics or its result."""

    name: str
    state: str = WAITING
    line: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    started: float | None = None
    ended: float | None = None

    @property
    def seconds(self) -> float | None:
        """Duration so far; None if this process has not seen the job start."""
        return None if self.started is None else (self.ended or time.monotonic()) - self.started


class ProgressTracker:
    """Progress of every job, in the order in which the jobs became known.

    Args:
        names: Names of the jobs that are known in advance.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self.jobs = {name: JobProgress(name) for name in names}
        self.workers = 0
        self.on_finish: Callable[[JobProgress], None] | None = None  # called when a job is done or has failed
        self.started = time.monotonic()

    def update(self, event: JobEvent) -> None:
        """Apply an event."""
        kind, name = event["kind"], event.get("job")
        if kind == "workers":
            self.workers = event["count"]
        if name is None:
            return
        job = self.jobs.setdefault(name, JobProgress(name))
        if kind == "started":
            job.state, job.started, job.error = RUNNING, time.monotonic(), ""
        elif kind == "metrics":
            job.line = event["line"]
        elif kind in (DONE, FAILED):
            job.state, job.error = kind, event.get("error") or ""
            job.line = {key: value for key, value in event.items() if key not in ("kind", "job")} or job.line
            job.ended = time.monotonic() if job.started is not None else None
            if self.on_finish is not None:
                self.on_finish(job)
        elif kind == "requeued":
            job.state = WAITING

    def in_state(self, state: str) -> list[JobProgress]:
        """Jobs in the given state."""
        return [job for job in self.jobs.values() if job.state == state]

    @property
    def summary(self) -> str:
        """Number of jobs in each state, such as `3 done, 2 running, 7 waiting`."""
        counts = [(len(self.in_state(state)), name) for state, name in STATE_NAMES.items()]
        return ", ".join(f"{count} {name}" for count, name in counts if count)
