"""Interfaces of jobs and job sources. A job is one cell of a sweep or one trial of a search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

from itl.callbacks.base import Callback
from itl.checkpoint import store
from itl.errors import UserError
from itl.experiments.config import Config
from itl.locks import FileLock
from itl.streams import Stream

JobEvent = dict[str, Any]
"""Progress message: `kind` (started, metrics, measured, requeued, done, failed or workers), `job` (name), details."""
ReportValue = Callable[[int, float], bool]
"""Reports a trial's value at a step, as `report(step, value)`; returns whether the trial should be pruned."""


@dataclass(frozen=True)
class JobContext:
    """What a process provides to the job that it runs.

    Args:
        root: Folder under which the job writes.
        streams: Streams of the job's runs.
        callbacks: Called during training.
        device: "cpu", "cuda" or "cuda:N".
        report: Reports intermediate values.
        stop: Whether a run should stop at its next checkpoint; None if there is no time limit.
    """

    root: Path
    streams: StreamCache
    callbacks: Sequence[Callback]
    device: str
    report: ReportValue
    stop: Callable[[], bool] | None = None


class Job(Protocol):
    """Work that one process does at a time. A job can be pickled, and writes to `folder` under a given root."""

    @property
    def name(self) -> str:
        """Name of the job and of its lock."""

    @property
    def folder(self) -> str:
        """Output folder, relative to the root."""

    @property
    def configs(self) -> Sequence[Config]:
        """Configurations of the job's runs; their streams must be available."""

    @property
    def required_folders(self) -> Sequence[str]:
        """Absolute paths of other folders that the job reads."""

    def relocate(self, root: Path) -> Job:
        """Copy of the job that reads its required folders from copies under `root`."""

    def run(self, context: JobContext) -> JobEvent:
        """Run or resume the job and return the details of its "done" event."""


class JobSource(Protocol):
    """Hands out jobs. Several processes may claim jobs from the same folder."""

    claims_ahead: bool  # whether a job may be claimed long before it starts

    @property
    def spec(self) -> dict[str, Any]:
        """JSON-compatible description from which another process can open the same source."""

    def claim(self) -> tuple[Job, FileLock] | None:
        """Lock and return the next job that is neither finished nor locked; None if there is none."""

    def reporter(self, job: Job) -> ReportValue:
        """Function through which a job reports intermediate values."""

    def finish(self, job: Job, details: JobEvent) -> None:
        """Record that a job is done."""

    def fail(self, name: str, message: str) -> None:
        """Record that the job of this name failed."""


class StreamCache:
    """Loads streams and keeps the latest one, because the runs of a grid are ordered by stream."""

    def __init__(self, data: str) -> None:
        self.data, self.lock = data, Lock()
        self.latest: tuple[str, Stream] | None = None

    def load(self, config: Config) -> Stream:
        """Stream of a run."""
        key = stream_key(config)
        with self.lock:
            if self.latest is None or self.latest[0] != key:
                self.latest = None  # free its memory before the next stream is loaded
                self.latest = (key, config.load_stream(self.data))
            return self.latest[1]


def stream_key(config: Config) -> str:
    """Key that is equal for runs that use the same stream."""
    return repr((config.stream, config.tasks, config.order, config.order_seed, config.split))


def describe_error(error: BaseException) -> str:
    """One line about an error; other errors than the user's are prefixed with their type."""
    if isinstance(error, (UserError, OSError)):
        return " ".join(str(error).split())
    return f"{type(error).__name__}: {store.error_summary(error)}"


def is_disk_full(error: BaseException | None) -> bool:
    """Whether a full disk caused the error, so that every other job would fail too."""
    while error is not None and not store.is_disk_full(error):
        error = error.__cause__
    return error is not None


def disk_full_error(message: str) -> UserError:
    """Error that ends a sweep or a search when the disk is full."""
    return UserError(f"{message}. Finished runs are kept: free some space and repeat the command.")
