"""Worker process: runs jobs of a source until none is left and prints events to stdout, one JSON object per line.

`itl.experiments.search.local_backend` starts it with OMP_NUM_THREADS in its environment and a JSON object on stdin.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Event, Lock
from typing import TYPE_CHECKING, Any

from itl.callbacks.base import Callback
from itl.callbacks.checkpointing import RunStopped
from itl.experiments.search.jobs import Job, JobContext, JobEvent, JobSource, StreamCache, describe_error, is_disk_full
from itl.experiments.search.time_limit import TimeLimit

if TYPE_CHECKING:
    import torch

    from itl.learner import Learner

EXIT_DISK_FULL, EXIT_JOB_DONE, EXIT_INTERRUPTED = 28, 75, 130
REPORTED_KEYS = ("kind", "task", "stage", "epoch", "class_il", "task_il")  # of a line of metrics.jsonl


class WorkerStopped(KeyboardInterrupt):
    """The parent process has ended or the worker was stopped. The run can be resumed from its last checkpoint."""


class WorkerCallback(Callback):
    """Reports metrics, calls `measure_memory` after the first task, and stops the run when it is no longer wanted."""

    def __init__(
        self, job: Job, emit: Callable[[JobEvent], None], measure_memory: Callable[[], None], stop: Event
    ) -> None:
        self.job, self.emit, self.measure_memory, self.stop = job, emit, measure_memory, stop
        self.parent = os.getppid()

    def on_record(self, line: dict[str, Any]) -> None:
        """Report a line of metrics."""
        self.emit({"kind": "metrics", "job": self.job.name, "line": {key: line.get(key) for key in REPORTED_KEYS}})

    def on_round_end(self, learner: Learner, stage: Any, epoch: int, loss: float) -> None:
        """Stop if the parent process has ended or a stop was requested."""
        if os.getppid() != self.parent or self.stop.is_set():
            raise WorkerStopped

    def on_task_end(self, learner: Learner) -> None:
        """Measure memory: every stage has run by now, so the process has reached its peak."""
        self.measure_memory()


class JobRunner:
    """Runs jobs of a source: first one, then on a GPU as many at a time as its memory allows.

    Args:
        source: Source of the jobs.
        root: Output folder.
        streams: Loads the streams of the jobs.
        device: Device to run on.
        runs_per_gpu: Maximum number of concurrent jobs on a GPU.
        once: Stop after one job per thread; `job_done` then says whether there was one.
        time_limit: When jobs must stop; None for no limit.
    """

    def __init__(
        self,
        source: JobSource,
        root: Path,
        streams: StreamCache,
        device: torch.device,
        runs_per_gpu: int,
        once: bool = False,
        time_limit: TimeLimit | None = None,
    ) -> None:
        self.source, self.root, self.streams, self.device = source, root, streams, device
        self.runs_per_gpu = self.allowed = runs_per_gpu
        self.once, self.job_done = once, False
        self.stop, self.memory_known, self.output_lock = Event(), Event(), Lock()
        self.disk_full: str | None = None
        self.time_limit = time_limit or TimeLimit(None)

    def run(self) -> None:
        """Run jobs until none is left or the time limit is reached."""
        from itl.engine.concurrency import run_concurrently

        threads = [partial(self._run_jobs, number) for number in range(self.runs_per_gpu)]
        run_concurrently(threads, self.runs_per_gpu, self.device, self.stop)

    def _run_jobs(self, thread: int) -> None:
        if thread:
            self.memory_known.wait()
        try:
            while not self.stop.is_set() and not self.time_limit.reached() and thread < self.allowed:
                if (claimed := self.source.claim()) is None:
                    return
                job, lock = claimed
                with lock:
                    self._run_job(job)
                if self.once:
                    self.job_done = True
                    return
        finally:
            self.memory_known.set()

    def _run_job(self, job: Job) -> None:
        self.emit({"kind": "started", "job": job.name})
        callback = WorkerCallback(job, self.emit, self.measure_memory, self.stop)
        device, report, stop = str(self.device), self.source.reporter(job), self.time_limit.start_run()
        try:
            details = job.run(JobContext(self.root, self.streams, [callback], device, report, stop))
            self.source.finish(job, details)
            self.emit({"kind": "done", "job": job.name, **details})
        except RunStopped:
            self.emit({"kind": "requeued", "job": job.name})
        except Exception as error:
            if is_disk_full(error):
                self.disk_full = describe_error(error)
                self.stop.set()
                return
            traceback.print_exc()
            self.source.fail(job.name, describe_error(error))
            self.emit({"kind": "failed", "job": job.name, "error": describe_error(error)})
        self.measure_memory()

    def measure_memory(self) -> None:
        """Report the memory of the first job, and admit as many concurrent jobs as the GPU's memory allows."""
        if self.memory_known.is_set():
            return
        from itl.experiments.search.resources import resident_memory, runs_that_fit

        self.allowed = runs_that_fit(self.device, self.runs_per_gpu)
        self.emit({"kind": "measured", "bytes": resident_memory(os.getpid())})
        self.memory_known.set()

    def emit(self, event: JobEvent) -> None:
        """Print an event to stdout."""
        with self.output_lock:
            print(json.dumps(event), flush=True)


def open_job_source(spec: dict[str, Any]) -> JobSource:
    """Job source that `spec` describes."""
    if spec["source"] == "sweep":
        from itl.experiments.search.sweep_jobs import SweepJobs

        return SweepJobs.from_spec(spec)
    from itl.experiments.search.trials import TrialJobs

    return TrialJobs.from_spec(spec)


def main() -> int:
    """Run jobs until none is left; returns the exit code."""
    spec = json.load(sys.stdin)
    import torch

    from itl.engine.device import choose_engine

    torch.set_num_threads(spec["threads"])
    device = choose_engine(spec["device"]).device
    source, streams = open_job_source(spec), StreamCache(spec["data"])
    once, time_limit = spec.get("once", False), TimeLimit(spec.get("deadline"))
    runner = JobRunner(source, Path(spec["out"]), streams, device, spec["runs_per_gpu"], once, time_limit)
    try:
        runner.run()
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    if runner.disk_full is not None:
        runner.emit({"kind": "disk_full", "error": runner.disk_full})
        return EXIT_DISK_FULL
    return EXIT_JOB_DONE if runner.job_done else 0


if __name__ == "__main__":
    sys.exit(main())
