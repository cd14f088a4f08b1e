"""Jobs that wait for one another, several side by side on one device, within a time.

A worker takes the first job, in order of value, whose needs are met and which can be expected to end in time. What a
job takes is reckoned from the longest of its kind so far, before that from its own guess, and from how many share the
device: near the end of the time, when there is none left for four at once, one or two more may still fit in.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Condition


@dataclass(frozen=True)
class Job:
    """Something to do once what it `needs` is done. `work` returns a line on what came of it, or raises."""

    name: str
    work: Callable[[], str] = field(repr=False)
    kind: str = "run"  # of those that take the same time
    guess: float = 0.0  # seconds in one of four lanes, while none of its kind has ended
    needs: tuple[str, ...] = ()


def crowded(lanes: int) -> float:
    """What a run takes beside others, as a share of what it takes in one of four lanes (docs/performance.md)."""
    return (2 + 3 * lanes) / 14


class Board:
    """What is open, under way, done and given up; safe for several workers."""

    def __init__(
        self,
        jobs: Sequence[Job],
        until: float = float("inf"),
        clock: Callable[[], float] = time.monotonic,
        crowd: Callable[[int], float] = lambda lanes: 1.0,
    ) -> None:
        self.open = list(jobs)
        self.until, self.clock, self.crowd = until, clock, crowd
        self.begun = clock()
        self.done: set[str] = set()
        self.lost: set[str] = set()  # failed, or waiting for one that did
        self.working: dict[str, int] = {}  # by name: how many there were at once, at most
        self.longest: dict[str, float] = {}  # seconds by kind, in one of four lanes
        self.changed = Condition()

    def seconds(self) -> float:
        """Since the beginning."""
        return self.clock() - self.begun

    def expected(self, job: Job) -> float:
        """How long a job will take, beside those under way."""
        return self.longest.get(job.kind, job.guess) * self.crowd(len(self.working) + 1)

    def take(self) -> Job | None:
        """The next job, waiting for one where others may set it free; None when nothing is left to begin."""
        with self.changed:
            while True:
                self._give_up()
                job = next((job for job in self.open if self._ready(job)), None)
                if job is not None:
                    self.open.remove(job)
                    self.working[job.name] = 0
                    now = len(self.working)
                    self.working = {name: max(most, now) for name, most in self.working.items()}
                    return job
                if not self.working or not self.open:
                    return None
                self.changed.wait()

    def _ready(self, job: Job) -> bool:
        return self.done.issuperset(job.needs) and self.seconds() + self.expected(job) <= self.until

    def _give_up(self) -> None:
        """Whatever needs a lost job is lost too."""
        while lost := [job for job in self.open if self.lost.intersection(job.needs)]:
            for job in lost:
                self.open.remove(job)
                self.lost.add(job.name)

    def ends(self, job: Job, took: float, *, well: bool) -> None:
        """A job is over."""
        with self.changed:
            took /= self.crowd(self.working.pop(job.name))
            (self.done if well else self.lost).add(job.name)
            if well:
                self.longest[job.kind] = max(took, self.longest.get(job.kind, 0.0))
            self.changed.notify_all()

    def worker(self, say: Callable[[str], None] = print) -> None:
        """Take jobs and do them until nothing is left to begin. A job that fails costs those that need it, no other."""
        while (job := self.take()) is not None:
            at, well = self.seconds(), False
            try:
                line = job.work()
                well = True
            except Exception as error:
                line = f"failed: {type(error).__name__}: {error}"
            finally:
                took = self.seconds() - at
                self.ends(job, took, well=well)
            say(f"{self.seconds():6.0f} s  {job.name}: {line} ({took:.0f} s)")


def work_off(jobs: Sequence[Job], lanes: int, device: str, until: float = float("inf")) -> Board:
    """Do `jobs`, at most `lanes` at once, none that would end later than `until` seconds from now."""
    from itl.engine.device import choose_engine
    from itl.engine.lanes import side_by_side

    board = Board(jobs, until, crowd=crowded)
    side_by_side(
        [lambda: board.worker(lambda line: print(line, flush=True))] * lanes, lanes, choose_engine(device).device
    )
    return board
