"""Local backend: processes on the CPU cores of this machine, or one process per GPU. They share only the folder.

One process starts first. After its first task its memory use is known, and more processes start as far as the free
memory allows.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

from itl.atomic import open_without_links
from itl.errors import UserError
from itl.experiments.search.job_locks import LOCKS_FOLDER
from itl.experiments.search.jobs import JobEvent, disk_full_error
from itl.experiments.search.progress import ProgressTracker
from itl.experiments.search.resources import free_memory, plan_processes, processes_that_fit, resident_memory
from itl.experiments.search.time_limit import TimeLimit
from itl.experiments.search.worker import EXIT_DISK_FULL, EXIT_INTERRUPTED, EXIT_JOB_DONE, open_job_source

DEFAULT_RUNS_PER_GPU = 4  # more do not use a GPU better (docs/performance.md)
MAX_ATTEMPTS = 3  # a job fails when this many of its processes have died
POLL_SECONDS = 0.2


@dataclass(frozen=True)
class LocalBackend:
    """Runs jobs in processes on this machine.

    Args:
        workers: Number of processes, or of GPUs to use; None for as many as cores and memory allow.
        threads: CPU threads per process; None to divide the cores among the processes.
        runs_per_gpu: Maximum number of concurrent runs on each GPU.
        device: `auto`, `cpu`, `cuda` or `cuda:N`.
        deadline: Unix time before which runs stop at a checkpoint; None for no limit.
    """

    workers: int | None = None
    threads: int | None = None
    runs_per_gpu: int = DEFAULT_RUNS_PER_GPU
    device: str = "auto"
    deadline: float | None = None

    def run_jobs(self, spec: dict[str, Any], tracker: ProgressTracker, max_jobs: int, data: str) -> None:
        """Run the jobs of the source that `spec` describes, at most `max_jobs` at a time, until the deadline."""
        devices, threads, runs_per_gpu = self._plan(max_jobs)
        if TimeLimit(self.deadline).reached():
            return
        spec = {**spec, "data": data, "threads": threads, "runs_per_gpu": runs_per_gpu, "deadline": self.deadline}
        pool = _WorkerPool(spec, devices, tracker)
        try:
            pool.run()
        finally:
            pool.stop()

    def _plan(self, max_jobs: int) -> tuple[list[str], int, int]:
        """Device of each process, threads per process, and concurrent runs per device."""
        from itl.engine.device import choose_engine

        device = choose_engine(self.device).device
        if device.type != "cuda":
            count, threads = plan_processes(self.workers, self.threads, max_jobs)
            return ["cpu"] * count, threads, 1
        import torch

        count = torch.cuda.device_count() if device.index is None else 1
        first = device.index or 0
        devices = [f"cuda:{first + k}" for k in range(min(count, self.workers or count))]
        threads = plan_processes(len(devices), self.threads, len(devices))[1]
        return devices, threads, min(self.runs_per_gpu, max_jobs)


class _WorkerProcess:
    """A worker process, and the thread that reads its events; `on_event(worker, None)` says that it has ended."""

    def __init__(self, spec: dict[str, Any], device: str, on_event: Callable[[_WorkerProcess, JobEvent | None], None]):
        self.device = device
        self.running: set[str] = set()  # names of its current jobs
        env = {**os.environ, "OMP_NUM_THREADS": str(spec["threads"]), "MKL_NUM_THREADS": str(spec["threads"])}
        log_file = Path(spec["out"], LOCKS_FOLDER, "worker.log")
        with open_without_links(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND) as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "itl.experiments.search.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=env,
            )
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({**spec, "device": device}))
        self.process.stdin.close()
        Thread(target=self._read_events, args=(on_event,), daemon=True).start()

    def _read_events(self, on_event: Callable[[_WorkerProcess, JobEvent | None], None]) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                try:
                    event = json.loads(line)
                except ValueError:
                    continue  # printed by a library
                on_event(self, event)
        self.process.wait()
        on_event(self, None)


class _WorkerPool:
    """Starts worker processes one after another, and replaces those that die.

    If a process dies, any of its jobs may be the cause. Each of them is repeated in a process that runs a single job,
    and fails if it was running in `MAX_ATTEMPTS` processes that died, alone in the last one. Once all these jobs have
    finished, processes run several jobs again.
    """

    def __init__(self, spec: dict[str, Any], devices: list[str], tracker: ProgressTracker) -> None:
        self.spec, self.unused_devices, self.tracker = spec, list(devices), tracker
        self.source = open_job_source(spec)
        self.events: queue.Queue[tuple[_WorkerProcess, JobEvent | None]] = queue.Queue()
        self.workers: list[_WorkerProcess] = []
        self.deaths: Counter[str] = Counter()  # died processes per unfinished job
        self.peak_memory = 0  # bytes of the largest process so far

    def run(self) -> None:
        self._start(self.unused_devices.pop(0))
        while self.workers:
            try:
                worker, event = self.events.get(timeout=POLL_SECONDS)
            except queue.Empty:
                if self.peak_memory:  # later jobs may need more than the first
                    sizes = (resident_memory(worker.process.pid) for worker in self.workers)
                    self.peak_memory = max([self.peak_memory, *sizes])
                continue
            if event is None:
                self._handle_exit(worker)
            else:
                self._handle_event(worker, event)

    def _handle_event(self, worker: _WorkerProcess, event: JobEvent) -> None:
        if event["kind"] == "started":
            worker.running.add(event["job"])
        if event["kind"] in ("done", "failed", "requeued"):
            worker.running.discard(event["job"])
            self.deaths.pop(event["job"], None)
        if event["kind"] == "disk_full":
            raise disk_full_error(event["error"])
        if event["kind"] == "measured":
            self.peak_memory = max(self.peak_memory, event["bytes"])
        self.tracker.update(event)
        if self.peak_memory and event["kind"] in ("measured", "done", "failed"):
            self._start_more()

    def _start_more(self) -> None:
        """Start as many processes as fit, considering how much the current ones may still grow."""
        if TimeLimit(self.spec.get("deadline")).reached():
            return
        growth = sum(max(0, self.peak_memory - resident_memory(worker.process.pid)) for worker in self.workers)
        count = processes_that_fit(self.peak_memory, free_memory() - growth)
        for _ in range(min(len(self.unused_devices), count)):
            self._start(self.unused_devices.pop(0))

    def _start(self, device: str) -> None:
        os.makedirs(os.path.join(self.spec["out"], LOCKS_FOLDER), exist_ok=True)
        spec = {**self.spec, "runs_per_gpu": 1, "once": True} if self.deaths else self.spec
        self.workers.append(_WorkerProcess(spec, device, lambda worker, event: self.events.put((worker, event))))
        self.tracker.update({"kind": "workers", "count": len(self.workers)})

    def _handle_exit(self, worker: _WorkerProcess) -> None:
        self.workers.remove(worker)
        code = worker.process.returncode
        if code in (0, EXIT_DISK_FULL):
            return
        if code == EXIT_INTERRUPTED:
            raise KeyboardInterrupt
        if code == EXIT_JOB_DONE:
            self._start(worker.device)
            return
        cause, log = _describe_exit(code), os.path.join(self.spec["out"], LOCKS_FOLDER, "worker.log")
        if not worker.running:
            raise UserError(f"A worker process ended with {cause} before it started a job. See {log}.")
        for name in sorted(worker.running):
            self.deaths[name] += 1
            self.tracker.update({"kind": "requeued", "job": name})
            if len(worker.running) == 1 and self.deaths[name] >= MAX_ATTEMPTS:
                self._fail(name, f"The worker process ended {self.deaths[name]} times with {cause}. See {log}.")
        self._start(worker.device)

    def _fail(self, name: str, message: str) -> None:
        del self.deaths[name]
        self.source.fail(name, message)
        self.tracker.update({"kind": "failed", "job": name, "error": message})

    def stop(self) -> None:
        """End the remaining processes; their runs can be resumed from the last checkpoint."""
        for worker in self.workers:
            worker.process.terminate()
        for worker in self.workers:
            worker.process.wait()


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    return f"signal {-code}" + (" (possibly out of memory)" if code == -9 else "")
