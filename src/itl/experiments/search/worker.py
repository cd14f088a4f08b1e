"""A process that works: it takes what is left from a source until nothing is, and tells what happens on stdout.

Started by `itl.experiments.search.local_backend` with OMP_NUM_THREADS in its environment and a JSON object on stdin.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Event as Flag
from threading import Lock
from typing import TYPE_CHECKING, Any

from itl.callbacks.base import Callback
from itl.experiments.search.jobs import Event, JobSource, Streams, Work, in_one_line, is_full

if TYPE_CHECKING:
    import torch

    from itl.learner import Learner

FULL, MORE, INTERRUPTED = 28, 75, 130  # exit codes: no space left on the disk; one piece done, as asked; told to stop
TOLD = ("kind", "task", "stage", "epoch", "class_il", "task_il")  # of a line of metrics.jsonl


class Gone(KeyboardInterrupt):
    """Whoever started this process has ended; the run's last saved state is there to go on with."""


class Tidings(Callback):
    """Tells of a run's lines, of the memory it took by its first task's end, and looks whether to stop."""

    def __init__(self, work: Work, tell: Callable[[Event], None], measured: Callable[[], None], stop: Flag) -> None:
        self.work, self.tell, self.measured, self.stop = work, tell, measured, stop
        self.parent = os.getppid()

    def on_record(self, line: dict[str, Any]) -> None:
        """A line of the record."""
        self.tell({"kind": "line", "work": self.work.name, "line": {key: line.get(key) for key in TOLD}})

    def on_round_end(self, learner: Learner, stage: Any, epoch: int, loss: float) -> None:
        """Stop here if nobody wants the rest any more."""
        if os.getppid() != self.parent or self.stop.is_set():
            raise Gone

    def on_task_end(self, learner: Learner) -> None:
        """By now the run has held in memory whatever it holds."""
        self.measured()


class Drain:
    """Takes and does pieces of work, `lanes` at once on a GPU: first one, then as many as its memory allows.

    `once`: a lane does one piece and no other; `more` then says that there was one.
    """

    def __init__(
        self, source: JobSource, root: Path, streams: Streams, device: torch.device, lanes: int, once: bool = False
    ) -> None:
        self.source, self.root, self.streams, self.device, self.lanes = source, root, streams, device, lanes
        self.once, self.more = once, False
        self.stop, self.known, self.speaks = Flag(), Flag(), Lock()
        self.allowed = lanes
        self.full: str | None = None

    def run(self) -> None:
        """Until nothing is left."""
        from itl.engine.concurrency import run_concurrently

        run_concurrently([partial(self._lane, k) for k in range(self.lanes)], self.lanes, self.device, self.stop)

    def _lane(self, number: int) -> None:
        if number:
            self.known.wait()
        try:
            while not self.stop.is_set() and number < self.allowed and (taken := self.source.claim()) is not None:
                work, mine = taken
                with mine:
                    self._do(work)
                if self.once:
                    self.more = True
                    return
        finally:
            self.known.set()

    def _do(self, work: Work) -> None:
        self.tell({"kind": "begins", "work": work.name})
        watch = Tidings(work, self.tell, self.measure, self.stop)
        try:
            details = work.do(self.root, self.streams, [watch], str(self.device), self.source.report(work))
            self.source.finish(work, details)
            self.tell({"kind": "done", "work": work.name, **details})
        except Exception as error:
            if is_full(error):
                self.full = in_one_line(error)
                self.stop.set()
                return
            traceback.print_exc()
            self.source.fail(work.name, in_one_line(error))
            self.tell({"kind": "failed", "work": work.name, "error": in_one_line(error)})
        self.measure()

    def measure(self) -> None:
        """Say what one piece takes; on a GPU, let in as many lanes as its memory holds."""
        if self.known.is_set():
            return
        from itl.experiments.search.resources import lanes_that_fit, resident

        self.allowed = lanes_that_fit(self.device, self.lanes)
        self.tell({"kind": "measured", "bytes": resident(os.getpid()), "lanes": self.allowed})
        self.known.set()

    def tell(self, event: Event) -> None:
        """A line on stdout."""
        with self.speaks:
            print(json.dumps(event), flush=True)


def source_of(spec: dict[str, Any]) -> JobSource:
    """The source that `spec` describes."""
    if spec["source"] == "cells":
        from itl.experiments.search.sweep_jobs import Cells

        return Cells.of(spec)
    from itl.experiments.search.trials import Trials

    return Trials.of(spec)


def main() -> int:
    """Work until nothing is left; the exit code says why it ended."""
    spec = json.load(sys.stdin)
    import torch

    from itl.engine.device import choose_engine

    torch.set_num_threads(spec["threads"])
    device = choose_engine(spec["device"]).device
    streams, once = Streams(spec["data"]), spec.get("once", False)
    drain = Drain(source_of(spec), Path(spec["out"]), streams, device, spec["lanes"], once)
    try:
        drain.run()
    except KeyboardInterrupt:
        return INTERRUPTED
    if drain.full is not None:
        drain.tell({"kind": "full", "error": drain.full})
        return FULL
    return MORE if drain.more else 0


if __name__ == "__main__":
    sys.exit(main())
