"""Several runs side by side on one GPU: each in its own thread, on its own stream, with its own graphs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Condition, Event, local
from typing import TypeVar

import torch

from itl.engine import green_context

Result = TypeVar("Result")

MOST = 24  # lanes at once: PyTorch hands out streams from a ring of 32
ASIDE = 0.36  # of the multiprocessors are for what is made ahead of the steps, which have all; 0: it has all too
SWITCH = 2e-4  # seconds: a lane that plans must not keep another from launching its steps


class CaptureGate:
    """Who may use the device how: one lane captures alone, lanes that launch kernels one by one do so together.

    cuDNN's search among its algorithms waits for the whole device, which is not allowed anywhere while a graph is
    captured, and a backward pass runs in one thread for all lanes. Replaying a graph needs no permission.
    """

    def __init__(self) -> None:
        self.changed = Condition()
        self.active = 0  # lanes launching kernels one by one
        self.waiting = 0  # lanes that want to capture
        self.alone = False  # one is capturing
        self.mine = local()  # how often this lane has asked to be eager

    @contextmanager
    def eager(self) -> Iterator[None]:
        """Within, no lane captures. May be asked for again within."""
        depth = getattr(self.mine, "depth", 0)
        with self.changed:
            self.changed.wait_for(lambda: depth > 0 or not (self.alone or self.waiting))
            self.active += 1
        self.mine.depth = depth + 1
        try:
            yield
        finally:
            self.mine.depth = depth
            with self.changed:
                self.active -= 1
                self.changed.notify_all()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Within, no other lane captures or launches kernels one by one."""
        with self.changed:
            self.waiting += 1
            self.changed.wait_for(lambda: not self.alone and not self.active)
            self.waiting -= 1
            self.alone = True
        try:
            yield
        finally:
            with self.changed:
                self.alone = False
                self.changed.notify_all()


CAPTURE_GATE = CaptureGate()


def run_concurrently(
    jobs: Sequence[Callable[[], Result]], lanes: int, device: torch.device, stop: Event | None = None
) -> list[Result]:
    """Run `jobs`, at most `lanes` at once, and return their results in order.

    On a CPU they run one after another: threads would only share the same cores. A job that fails does not stop the
    others; its exception is raised when all are done. An interrupt sets `stop`, which the jobs should look at, waits
    for those that have begun and begins no other.
    """
    lanes = min(lanes, len(jobs), MOST)
    if device.type != "cuda" or lanes <= 1:
        return _one_by_one(jobs)
    free = distinct_streams(lanes, device)
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH)
    try:
        with ThreadPoolExecutor(lanes, thread_name_prefix="lane") as threads:
            futures = [threads.submit(_in_lane, job, free, device) for job in jobs]
            try:
                wait(futures)
            except KeyboardInterrupt:
                if stop is not None:
                    stop.set()
                threads.shutdown(wait=True, cancel_futures=True)
                raise
    finally:
        sys.setswitchinterval(before)
    return [future.result() for future in futures]


def _one_by_one(jobs: Sequence[Callable[[], Result]]) -> list[Result]:
    out: list[Result] = []
    failed: Exception | None = None
    for job in jobs:
        try:
            out.append(job())
        except Exception as error:
            failed = failed or error
    if failed is not None:
        raise failed
    return out


def _in_lane(job: Callable[[], Result], free: list[torch.cuda.Stream], device: torch.device) -> Result:
    stream = free.pop()
    try:
        with torch.cuda.device(device), torch.cuda.stream(stream):
            result = job()
            stream.synchronize()
        return result
    finally:
        free.append(stream)


def distinct_streams(count: int, device: torch.device) -> list[torch.cuda.Stream]:
    """`count` streams no two of which are the same one of PyTorch's ring, nor one of the engine's own."""
    own = engine_streams(device)
    taken = {own.capture.cuda_stream, own.beside.cuda_stream, own.ahead.cuda_stream}
    out: list[torch.cuda.Stream] = []
    while len(out) < count:
        stream = torch.cuda.Stream(device)
        if stream.cuda_stream not in taken:
            taken.add(stream.cuda_stream)
            out.append(stream)
    return out


@dataclass(frozen=True)
class EngineStreams:
    """What the engine keeps of a device's streams. A graph has the shape of a capture, not its streams: two serve all.

    A stream taken anew for every capture would be a lane's own sooner or later: PyTorch has a ring of 32, and the lane
    could launch nothing while it was captured. The kernels of a graph keep the priority of the streams they were
    captured on: they go before whatever else is queued.
    """

    capture: torch.cuda.Stream
    beside: torch.cuda.Stream  # the second branch of a captured step
    ahead: torch.cuda.Stream  # for the next round's inputs


_own: dict[torch.device, EngineStreams] = {}
# All captures are made in one thread: what cuDNN's search has found is kept for each thread, and is found once so.
_capturer = ThreadPoolExecutor(1, thread_name_prefix="capture")


def in_capture_thread(work: Callable[[], Result], device: torch.device) -> Result:
    """Do `work` in the thread that captures, on the stream kept for it, while no other lane may disturb it."""

    def there() -> Result:
        with torch.cuda.device(device), torch.cuda.stream(engine_streams(device).capture):
            return work()

    with CAPTURE_GATE.exclusive():
        return _capturer.submit(there).result()


def side_stream(device: torch.device, captured: bool) -> torch.cuda.Stream:
    """For what goes beside a step's chain: the engine's own in a captured step, else the one that the rest is on."""
    return engine_streams(device).beside if captured else torch.cuda.current_stream(device)


def engine_streams(device: torch.device) -> EngineStreams:
    """The engine's own; ask `CAPTURE_GATE` before using the first two."""
    if device not in _own:
        first, second = (torch.cuda.Stream(device, priority=-1) for _ in range(2))
        ahead = green_context.stream_on(device, ASIDE) if ASIDE else None
        _own[device] = EngineStreams(first, second, ahead or torch.cuda.Stream(device))
    return _own[device]
