"""The backend `local`: processes on this machine's cores, or one a GPU with lanes. They share nothing but the folder.

One process is begun first. When its first task is learned it is known what a run takes, and the others follow as far
as the memory that is free then allows.
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
from threading import Thread
from typing import Any

from itl.errors import UserError
from itl.experiments.search.job_locks import LOCKS
from itl.experiments.search.jobs import Event
from itl.experiments.search.progress import Board
from itl.experiments.search.resources import free_memory, more_that_fit, processes, resident
from itl.experiments.search.worker import FULL, INTERRUPTED, MORE, source_of

LANES = 4  # a GPU is full with so many (docs/performance.md)
ATTEMPTS = 3  # a piece under way in so many deaths of its process is given up
EVERY = 0.2  # seconds between two looks


@dataclass(frozen=True)
class Local:
    """How many processes (None: as many as cores and memory allow), of how many threads; lanes on each GPU."""

    workers: int | None = None
    threads: int | None = None
    lanes: int = LANES
    device: str = "auto"

    def drain(self, spec: dict[str, Any], board: Board, amount: int, data: str) -> None:
        """Do all work of the source that `spec` describes, at most `amount` pieces at once; tell the board."""
        devices, threads, lanes = self._places(amount)
        spec = {**spec, "data": data, "threads": threads, "lanes": lanes}
        crew = _Crew(spec, devices, board)
        try:
            crew.work()
        finally:
            crew.stop()

    def _places(self, amount: int) -> tuple[list[str], int, int]:
        """A device for each process, the threads of each, and the lanes."""
        from itl.engine.device import choose_engine

        device = choose_engine(self.device).device
        if device.type != "cuda":
            count, threads = processes(self.workers, self.threads, amount)
            return ["cpu"] * count, threads, 1
        import torch

        count = torch.cuda.device_count() if device.index is None else 1
        first = device.index or 0
        places = [f"cuda:{first + k}" for k in range(min(count, self.workers or count))]
        return places, processes(len(places), self.threads, len(places))[1], min(self.lanes, amount)


class _Worker:
    """One process, and the thread that reads what it tells."""

    def __init__(self, spec: dict[str, Any], device: str, tell: Callable[[_Worker, Event | None], None]) -> None:
        self.device = device
        self.now: set[str] = set()  # the pieces under way, one a lane
        env = {**os.environ, "OMP_NUM_THREADS": str(spec["threads"]), "MKL_NUM_THREADS": str(spec["threads"])}
        with open(os.path.join(spec["out"], LOCKS, "worker.log"), "a") as log:
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
        Thread(target=self._listen, args=(tell,), daemon=True).start()

    def _listen(self, tell: Callable[[_Worker, Event | None], None]) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                try:
                    event = json.loads(line)
                except ValueError:
                    continue  # something else that was printed
                tell(self, event)
        self.process.wait()
        tell(self, None)


class _Crew:
    """The processes at work: begun one after another, begun again when one dies.

    A death counts for every piece that was under way, and each of them is tried again in a process that does one piece
    and no other, so that it is seen which ends it: one that was under way in three deaths, alone in the last, is given
    up. When all of them are over, processes have their lanes again.
    """

    def __init__(self, spec: dict[str, Any], devices: list[str], board: Board) -> None:
        self.spec, self.waiting, self.board = spec, list(devices), board
        self.source = source_of(spec)
        self.events: queue.Queue[tuple[_Worker, Event | None]] = queue.Queue()
        self.workers: list[_Worker] = []
        self.deaths: Counter[str] = Counter()  # of the pieces that are not over
        self.most = 0  # bytes that the largest process took so far

    def work(self) -> None:
        self._begin(self.waiting.pop(0))
        while self.workers:
            try:
                worker, event = self.events.get(timeout=EVERY)
            except queue.Empty:
                if self.most:  # what a first piece takes is known: some may take more
                    self.most = max([self.most, *(resident(worker.process.pid) for worker in self.workers)])
                continue
            if event is None:
                self._ended(worker)
            else:
                self._take(worker, event)

    def _take(self, worker: _Worker, event: Event) -> None:
        if event["kind"] == "begins":
            worker.now.add(event["work"])
        if event["kind"] in ("done", "failed"):
            worker.now.discard(event["work"])
            self.deaths.pop(event["work"], None)
        if event["kind"] == "full":
            raise UserError(f"{event['error']}; what is finished is kept, make room and give the same command again")
        if event["kind"] == "measured":
            self.most = max(self.most, event["bytes"])
        self.board.take(event)
        if self.most and event["kind"] in ("measured", "done", "failed"):
            self._begin_others()

    def _begin_others(self) -> None:
        """As many as fit beside what those at work will still take."""
        growing = sum(max(0, self.most - resident(worker.process.pid)) for worker in self.workers)
        for _ in range(min(len(self.waiting), more_that_fit(self.most, free_memory() - growing))):
            self._begin(self.waiting.pop(0))

    def _begin(self, device: str) -> None:
        os.makedirs(os.path.join(self.spec["out"], LOCKS), exist_ok=True)
        spec = {**self.spec, "lanes": 1, "once": True} if self.deaths else self.spec
        self.workers.append(_Worker(spec, device, lambda worker, event: self.events.put((worker, event))))
        self.board.take({"kind": "workers", "count": len(self.workers)})

    def _ended(self, worker: _Worker) -> None:
        self.workers.remove(worker)
        code = worker.process.returncode
        if code in (0, FULL):
            return
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        if code == MORE:
            self._begin(worker.device)
            return
        if not worker.now:
            raise UserError(f"a process ended with {_why(code)} before it did anything; see {self._log}")
        for name in sorted(worker.now):
            self.deaths[name] += 1
            self.board.take({"kind": "waits", "work": name})
            if len(worker.now) == 1 and self.deaths[name] >= ATTEMPTS:
                self._give_up(name, f"its process ended {self.deaths[name]} times with {_why(code)}; see {self._log}")
        self._begin(worker.device)

    def _give_up(self, name: str, message: str) -> None:
        del self.deaths[name]
        self.source.fail(name, message)
        self.board.take({"kind": "failed", "work": name, "error": message})

    @property
    def _log(self) -> str:
        return os.path.join(self.spec["out"], LOCKS, "worker.log")

    def stop(self) -> None:
        """End the processes that are left; what they saved is there to go on with."""
        for worker in self.workers:
            worker.process.terminate()
        for worker in self.workers:
            worker.process.wait()


def _why(code: int) -> str:
    return f"signal {-code}" + (" (is there enough memory?)" if code == -9 else "") if code < 0 else f"exit code {code}"
