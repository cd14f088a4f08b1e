"""A queue of jobs that depend on one another, worked off several at once on one device within a time limit.

The threads and their CUDA streams are those of `itl.engine.concurrency`. A worker takes the first job, in the given
order, whose dependencies are done and which is expected to end in time. A job is expected to take as long as the
longest job of its kind so far, or its own estimate while no job of its kind has ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Condition


@dataclass(frozen=True)
class Job:
    """Work to do once the jobs it `needs` are done. `work` returns one line about its outcome, or raises."""

    name: str
    work: Callable[[], str] = field(repr=False)
    kind: str = "run"  # jobs of one kind take about the same time
    estimate: float = 0.0  # seconds, until a job of this kind has ended
    needs: tuple[str, ...] = ()
    instant: bool = False  # takes no time: started even after the time limit


class JobQueue:
    """Hands out jobs to several workers and tracks which are waiting, running, done and failed."""

    def __init__(
        self, jobs: Sequence[Job], time_limit: float = float("inf"), clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.waiting = list(jobs)
        self.time_limit, self.clock, self.start = time_limit, clock, clock()
        self.running: set[str] = set()
        self.done: set[str] = set()
        self.failed: set[str] = set()  # includes jobs that need a failed job
        self.longest: dict[str, float] = {}  # seconds, by kind
        self.changed = Condition()

    def elapsed(self) -> float:
        """Seconds since the queue was created."""
        return self.clock() - self.start

    def take(self) -> Job | None:
        """The next job, after waiting for its dependencies; None when no further job can be started."""
        with self.changed:
            while True:
                self._fail_dependents()
                job = next((job for job in self.waiting if self.is_ready(job)), None)
                if job is not None:
                    self.waiting.remove(job)
                    self.running.add(job.name)
                    return job
                if not self.running or not self.waiting:
                    return None
                self.changed.wait()

    def is_ready(self, job: Job) -> bool:
        """Whether a job's dependencies are done and it is expected to end in time."""
        expected_end = self.elapsed() + self.longest.get(job.kind, job.estimate)
        return self.done.issuperset(job.needs) and (job.instant or expected_end <= self.time_limit)

    def _fail_dependents(self) -> None:
        while lost := [job for job in self.waiting if self.failed.intersection(job.needs)]:
            for job in lost:
                self.waiting.remove(job)
                self.failed.add(job.name)

    def finish(self, job: Job, seconds: float, *, succeeded: bool) -> None:
        """Record that a job has ended."""
        with self.changed:
            self.running.remove(job.name)
            (self.done if succeeded else self.failed).add(job.name)
            if succeeded:
                self.longest[job.kind] = max(seconds, self.longest.get(job.kind, 0.0))
            self.changed.notify_all()

    def work(self, log: Callable[[str], None] = print) -> None:
        """Do jobs until none can be started. A failed job stops only the jobs that need it."""
        while (job := self.take()) is not None:
            start, succeeded = self.elapsed(), False
            try:
                outcome = job.work()
                succeeded = True
            except Exception as error:
                outcome = f"failed: {type(error).__name__}: {error}"
            finally:
                self.finish(job, self.elapsed() - start, succeeded=succeeded)
            log(f"{self.elapsed():6.0f} s  {job.name}: {outcome} ({self.elapsed() - start:.0f} s)")


def run_jobs(jobs: Sequence[Job], workers: int, device: str, time_limit: float = float("inf")) -> JobQueue:
    """Do `jobs`, at most `workers` at once; start none that is expected to end after `time_limit` seconds."""
    from itl.engine.concurrency import run_concurrently
    from itl.engine.device import choose_engine

    queue = JobQueue(jobs, time_limit)
    worker = [lambda: queue.work(lambda line: print(line, flush=True))]
    run_concurrently(worker * workers, workers, choose_engine(device).device)
    return queue
