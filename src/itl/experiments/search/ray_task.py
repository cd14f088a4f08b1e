"""What a Ray task does: a whole run in a scratch folder of its node's, whose state it sends home as it is saved.

When a worker or a node dies, Ray begins the task again somewhere else, and it goes on from what was sent last.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from itl import __version__
from itl.callbacks.base import Callback
from itl.experiments.config import Config
from itl.experiments.search.file_sync import pack, unpack
from itl.experiments.search.jobs import Event, Streams, Work, in_one_line, is_full, stream_key
from itl.experiments.search.resources import resident
from itl.experiments.search.worker import TOLD

if TYPE_CHECKING:
    from itl.learner import Learner
    from itl.streams import Stream


class Courier(Callback):
    """Sends a run's folder to the mailbox whenever its state was saved, and tells how it goes."""

    def __init__(self, work: Work, root: Path, ask: Callable[..., Any]) -> None:
        self.work, self.root, self.ask = work, root, ask
        self.sent: dict[str, tuple[int, int]] = {}
        self.state = ""

    def on_record(self, line: dict[str, Any]) -> None:
        """A line of the record."""
        told = {key: line.get(key) for key in TOLD}
        self.ask("tell", {"kind": "line", "work": self.work.name, "line": told}, wait=False)

    def on_stage_start(self, learner: Learner, stage: Any) -> None:
        """The last task's state may just have been saved."""
        self._look()

    def on_round_end(self, learner: Learner, stage: Any, epoch: int, loss: float) -> None:
        """So may have been that of an unfinished stage."""
        self._look()

    def on_task_end(self, learner: Learner) -> None:
        """By now the run has held in memory whatever it holds."""
        self.ask("tell", {"kind": "measured", "bytes": resident(os.getpid()), "gpu": _gpu()}, wait=False)

    def _look(self) -> None:
        state = "".join(path.read_text() for path in sorted(self.place.rglob("CURRENT")))
        if state != self.state:
            self.state = state
            self.send()

    @property
    def place(self) -> Path:
        """The work's folder on this node."""
        return self.root / self.work.folder

    def send(self) -> None:
        """What is new since the last time."""
        wrong = self.ask("put", self.work.folder, pack(self.place, self.sent))
        if wrong:
            raise OSError(errno.ENOSPC if os.strerror(errno.ENOSPC) in wrong else errno.EIO, wrong)


def _gpu() -> float:
    """The share of its GPU's memory that this process has taken at most."""
    import torch

    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return 0.0
    return torch.cuda.max_memory_reserved() / torch.cuda.get_device_properties(0).total_memory


class _One(Streams):
    """The streams that came with a task."""

    def __init__(self, given: Mapping[str, Stream]) -> None:
        self.given = given

    def of(self, config: Config) -> Stream:
        """Loaded by the driver."""
        return self.given[stream_key(config)]


def carry_out(
    work: Work, keys: Sequence[str], mailbox: Any, reports: Any, device: str, threads: int, version: str, *given: Stream
) -> Event:
    """Do a piece of work on whichever node this is: a Ray task. What failed is told, not raised: Ray need not retry."""
    import ray
    import torch

    if version != __version__:
        return {"kind": "failed", "error": f"a node has itl {__version__}, the driver {version}; install the same"}
    torch.set_num_threads(threads)

    waiting = ThreadPoolExecutor(1)  # while a task's own thread waits in ray.get, Ray gives its cores to another task

    def ask(name: str, *args: Any, wait: bool = True) -> Any:
        answer = getattr(mailbox, name).remote(*args)
        return waiting.submit(ray.get, answer).result() if wait else None

    def report(step: int, value: float) -> bool:
        return bool(waiting.submit(ray.get, reports.report.remote(work, step, value)).result())

    ask("tell", {"kind": "begins", "work": work.name}, wait=False)
    with waiting, tempfile.TemporaryDirectory(prefix="itl-") as scratch:
        root = Path(scratch)
        courier = Courier(work, root, ask)
        try:
            for folder in (work.folder, *work.needs):
                unpack(root / folder.lstrip("/"), ask("fetch", folder))
            details = _placed(work, root).do(root, _One(dict(zip(keys, given, strict=True))), [courier], device, report)
            courier.send()
        except Exception as error:
            with suppress(OSError):
                courier.send()  # how far it came
            return {"kind": "full" if is_full(error) else "failed", "error": in_one_line(error)}
    return {"kind": "done", **details}


def _placed(work: Work, root: Path) -> Work:
    """The work, with what it reads from elsewhere where it lies on this node."""
    if not work.needs:
        return work
    return replace(work, kept=[str(root / place.lstrip("/")) for place in work.needs])  # type: ignore[type-var,call-arg]
