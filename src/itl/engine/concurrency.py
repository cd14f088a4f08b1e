"""Concurrent runs on one GPU: each has its own thread, stream and CUDA graphs."""

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

MAX_CONCURRENT = 24  # PyTorch hands out streams from a ring of 32
PREFETCH_SHARE = 0.36  # share of the multiprocessors for inputs prepared ahead of the steps; 0: no restriction
SWITCH_INTERVAL = 2e-4  # seconds; a run that plans must not keep another run from launching its steps


class CaptureGate:
    """Coordinates runs that share a device: one run captures alone; runs that launch kernels eagerly do so together.

    cuDNN's algorithm search synchronizes the whole device, which is forbidden while any graph is captured, and backward
    passes of all runs share one thread. Replaying a graph needs no permission.
    """

    def __init__(self) -> None:
        self.changed = Condition()
        self.active = 0  # runs launching kernels eagerly
        self.waiting = 0  # runs waiting to capture
        self.capturing = False
        self.thread = local()  # nesting depth of `eager` in this thread

    @contextmanager
    def eager(self) -> Iterator[None]:
        """Launch kernels eagerly; no run captures meanwhile. May be nested."""
        depth = getattr(self.thread, "depth", 0)
        with self.changed:
            self.changed.wait_for(lambda: depth > 0 or not (self.capturing or self.waiting))
            self.active += 1
        self.thread.depth = depth + 1
        try:
            yield
        finally:
            self.thread.depth = depth
            with self.changed:
                self.active -= 1
                self.changed.notify_all()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Capture a graph; no other run captures or launches kernels eagerly meanwhile."""
        with self.changed:
            self.waiting += 1
            self.changed.wait_for(lambda: not self.capturing and not self.active)
            self.waiting -= 1
            self.capturing = True
        try:
            yield
        finally:
            with self.changed:
                self.capturing = False
                self.changed.notify_all()


CAPTURE_GATE = CaptureGate()


def run_concurrently(
    jobs: Sequence[Callable[[], Result]], max_concurrent: int, device: torch.device, stop: Event | None = None
) -> list[Result]:
    """Run `jobs` and return their results in order.

    A failing job does not stop the others; its exception is raised when all have finished. On a CPU the jobs run one
    after another, because threads would share the same cores.

    Args:
        jobs: Functions without arguments.
        max_concurrent: Maximum number of jobs that run at the same time.
        device: The device that the jobs share.
        stop: Set on Ctrl-C; jobs should check it. Running jobs are awaited and no other is started.
    """
    max_concurrent = min(max_concurrent, len(jobs), MAX_CONCURRENT)
    if device.type != "cuda" or max_concurrent <= 1:
        return _run_in_turn(jobs)
    free = distinct_streams(max_concurrent, device)
    previous = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL)
    try:
        with ThreadPoolExecutor(max_concurrent, thread_name_prefix="run") as threads:
            futures = [threads.submit(_on_free_stream, job, free, device) for job in jobs]
            try:
                wait(futures)
            except KeyboardInterrupt:
                if stop is not None:
                    stop.set()
                threads.shutdown(wait=True, cancel_futures=True)
                raise
    finally:
        sys.setswitchinterval(previous)
    return [future.result() for future in futures]


def _run_in_turn(jobs: Sequence[Callable[[], Result]]) -> list[Result]:
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


def _on_free_stream(job: Callable[[], Result], free: list[torch.cuda.Stream], device: torch.device) -> Result:
    stream = free.pop()
    try:
        with torch.cuda.device(device), torch.cuda.stream(stream):
            result = job()
            stream.synchronize()
        return result
    finally:
        free.append(stream)


def distinct_streams(count: int, device: torch.device) -> list[torch.cuda.Stream]:
    """`count` different streams of PyTorch's ring, none of them one of the engine's own."""
    own = engine_streams(device)
    used = {own.capture.cuda_stream, own.side.cuda_stream, own.prefetch.cuda_stream}
    out: list[torch.cuda.Stream] = []
    while len(out) < count:
        stream = torch.cuda.Stream(device)
        if stream.cuda_stream not in used:
            used.add(stream.cuda_stream)
            out.append(stream)
    return out


@dataclass(frozen=True)
class EngineStreams:
    """Streams that the engine keeps for itself.

    A graph records the structure of a capture, not its streams, so two streams serve all captures. A new stream for
    each capture would sooner or later be one that a run uses (PyTorch has a ring of 32), and that run could not launch
    anything during the capture. Kernels of a graph keep the priority of the streams they were captured on, so they run
    before other queued work.

    Attributes:
        capture: Main stream of captures.
        side: Second branch of a captured step.
        prefetch: Prepares the inputs of the next round.
    """

    capture: torch.cuda.Stream
    side: torch.cuda.Stream
    prefetch: torch.cuda.Stream


_streams: dict[torch.device, EngineStreams] = {}
# All captures run in one thread: cuDNN caches the results of its algorithm search per thread.
_capture_thread = ThreadPoolExecutor(1, thread_name_prefix="capture")


def in_capture_thread(work: Callable[[], Result], device: torch.device) -> Result:
    """Run `work` in the capture thread, on the capture stream, with exclusive use of the device."""

    def on_capture_stream() -> Result:
        with torch.cuda.device(device), torch.cuda.stream(engine_streams(device).capture):
            return work()

    with CAPTURE_GATE.exclusive():
        return _capture_thread.submit(on_capture_stream).result()


def side_stream(device: torch.device, captured: bool) -> torch.cuda.Stream:
    """Stream for work parallel to a step's main chain: the side stream if captured, else the current stream."""
    return engine_streams(device).side if captured else torch.cuda.current_stream(device)


def engine_streams(device: torch.device) -> EngineStreams:
    """The engine's own streams. Use `capture` and `side` only inside `CAPTURE_GATE.exclusive()`."""
    if device not in _streams:
        capture, side = (torch.cuda.Stream(device, priority=-1) for _ in range(2))
        prefetch = green_context.stream_on(device, PREFETCH_SHARE) if PREFETCH_SHARE else None
        _streams[device] = EngineStreams(capture, side, prefetch or torch.cuda.Stream(device))
    return _streams[device]
