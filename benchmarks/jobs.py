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
    late: bool = False  # takes no time: begun even when that is over


def crowded(lanes: int) -> float:
    """What a run takes in one of up to four lanes, as a share of what it takes in one of four (docs/performance.md)."""
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
        self.working: dict[str, tuple[Job, float]] = {}  # with the seconds done of each; in one of four lanes, as below
        self.longest: dict[str, float] = {}  # by kind
        self.noted = 0.0  # when what is done was last reckoned
        self.changed = Condition()

    def seconds(self) -> float:
        """Since the beginning."""
        return self.clock() - self.begun

    def expected(self, job: Job) -> float:
        """How long a job takes in one of four lanes."""
        return self.longest.get(job.kind, job.guess)

    def _note(self) -> None:
        """Reckon what those under way have done since last time."""
        now = self.seconds()
        done = (now - self.noted) / self.crowd(max(1, len(self.working)))
        self.working = {name: (job, before + done) for name, (job, before) in self.working.items()}
        self.noted = now

    def take(self) -> Job | None:
        """The next job, waiting for one where others may set it free; None when nothing is left to begin."""
        with self.changed:
            while True:
                self._give_up()
                self._note()
                job = next((job for job in self.open if self._ready(job)), None)
                if job is not None:
                    self.open.remove(job)
                    self.working[job.name] = (job, 0.0)
                    return job
                if not self.working or not self.open:
                    return None
                self.changed.wait()

    def _ready(self, job: Job) -> bool:
        """Whether its needs are met, and it and all under way can be expected to end in time beside each other."""
        left = [self.expected(job), *(self.expected(other) - done for other, done in self.working.values())]
        last = self.noted + max(left) * self.crowd(len(left))
        return self.done.issuperset(job.needs) and (job.late or last <= self.until)

    def _give_up(self) -> None:
        """Whatever needs a lost job is lost too."""
        while lost := [job for job in self.open if self.lost.intersection(job.needs)]:
            for job in lost:
                self.open.remove(job)
                self.lost.add(job.name)

    def ends(self, job: Job, *, well: bool) -> None:
        """A job is over."""
        with self.changed:
            self._note()
            _, took = self.working.pop(job.name)
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
                self.ends(job, well=well)
            say(f"{self.seconds():6.0f} s  {job.name}: {line} ({self.seconds() - at:.0f} s)")


def work_off(jobs: Sequence[Job], lanes: int, device: str, until: float = float("inf")) -> Board:
    """Do `jobs`, at most `lanes` at once, none that would end later than `until` seconds from now."""
    from itl.engine.concurrency import run_concurrently
    from itl.engine.device import choose_engine

    board = Board(jobs, until, crowd=crowded)
    run_concurrently(
        [lambda: board.worker(lambda line: print(line, flush=True))] * lanes, lanes, choose_engine(device).device
    )
    return board
