"""Sweeps: run every cell of a grid. Finished cells are skipped, interrupted ones resumed, failed ones repeated."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from itl.experiments.config import Config
from itl.experiments.search.job_locks import acquire_job_lock
from itl.experiments.search.jobs import stream_key
from itl.experiments.search.progress import DONE, FAILED, WAITING, ProgressTracker
from itl.experiments.search.sweep_jobs import SweepJobs


class Backend(Protocol):
    """Runs jobs: `LocalBackend` or `RayBackend`."""

    def run_jobs(self, spec: dict[str, Any], tracker: ProgressTracker, max_jobs: int, data: str) -> None:
        """Run all jobs of the source that `spec` describes, at most `max_jobs` at a time."""


def load_progress(jobs: SweepJobs) -> ProgressTracker:
    """Progress of a sweep according to its folder.

    Raises:
        UserError: If the folder of a cell contains another run.
    """
    jobs.check_folders()
    tracker = ProgressTracker([config.name for config in jobs.configs])
    for config in jobs.configs:
        if (state := jobs.state(config)) is not None:
            tracker.update({"job": config.name, **state})
    return tracker


def sweep(
    jobs: SweepJobs, backend: Backend, tracker: ProgressTracker, data: str = "data", download: bool = False
) -> None:
    """Run the unfinished cells of a sweep.

    Args:
        jobs: Cells and the folder of their runs.
        backend: `LocalBackend` or `RayBackend`.
        tracker: Progress of the sweep, from `load_progress`; it is updated while the sweep runs.
        data: Folder of the datasets.
        download: Whether to download datasets that are missing.

    Raises:
        UserError: If a stream cannot be loaded or the folder cannot be written, before the first cell starts. A cell
            that fails does not stop the sweep; its error is in `tracker` and in its folder.
    """
    done = {job.name for job in tracker.in_state(DONE)}
    unfinished = [config for config in jobs.configs if config.name not in done]
    if not unfinished:
        return
    _check_streams(unfinished, data, download)
    jobs.prepare()
    for job in tracker.in_state(FAILED):
        tracker.update({"kind": "requeued", "job": job.name})
    backend.run_jobs(jobs.spec, tracker, len(unfinished), data)
    for config in unfinished:  # another process may have finished some of them
        if (state := jobs.state(config)) is not None and tracker.jobs[config.name].state == WAITING:
            tracker.update({"job": config.name, **state})


def _check_streams(configs: Sequence[Config], data: str, download: bool) -> None:
    """Load each stream once, so that a missing dataset or an invalid split is reported before the first run."""
    for config in {stream_key(config): config for config in configs}.values():
        config.load_stream(data, download)


def cells_in_other_processes(jobs: SweepJobs) -> list[str]:
    """Names of the cells that other processes are running."""
    locked = []
    for config in jobs.configs:
        if jobs.state(config) is None:
            lock = acquire_job_lock(jobs.out, config.name)
            if lock is None:
                locked.append(config.name)
            else:
                lock.release()
    return locked


def default_sweep_folder(name: str) -> Path:
    """Default output folder of a grid."""
    return Path("runs") / name
