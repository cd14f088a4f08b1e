"""Several runs side by side on one GPU: each in its own thread, on its own stream, with its own graphs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import TypeVar

import torch

Result = TypeVar("Result")

MOST = 24  # lanes at once: PyTorch hands out streams from a ring of 32
SWITCH = 2e-4  # seconds: a lane that plans must not keep another from launching its steps
CAPTURING = Lock()  # one lane captures (or warms up for it) at a time


def side_by_side(jobs: Sequence[Callable[[], Result]], lanes: int, device: torch.device) -> list[Result]:
    """Run `jobs`, at most `lanes` at once, and return their results in order.

    On a CPU they run one after another: threads would only share the same cores. A job that fails does not stop the
    others; its exception is raised when all are done.
    """
    lanes = min(lanes, len(jobs), MOST)
    if device.type != "cuda" or lanes <= 1:
        return [job() for job in jobs]
    free = different_streams(lanes, device)
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH)
    try:
        with ThreadPoolExecutor(lanes, thread_name_prefix="lane") as threads:
            futures = [threads.submit(_in_lane, job, free, device) for job in jobs]
    finally:
        sys.setswitchinterval(before)
    return [future.result() for future in futures]


def _in_lane(job: Callable[[], Result], free: list[torch.cuda.Stream], device: torch.device) -> Result:
    stream = free.pop()
    try:
        with torch.cuda.device(device), torch.cuda.stream(stream):
            result = job()
            stream.synchronize()
        return result
    finally:
        free.append(stream)


def different_streams(count: int, device: torch.device) -> list[torch.cuda.Stream]:
    """`count` streams no two of which are the same one of PyTorch's ring, nor the one that captures."""
    taken = {capture_stream(device).cuda_stream}
    out: list[torch.cuda.Stream] = []
    while len(out) < count:
        stream = torch.cuda.Stream(device)
        if stream.cuda_stream not in taken:
            taken.add(stream.cuda_stream)
            out.append(stream)
    return out


_capture: dict[torch.device, torch.cuda.Stream] = {}


def capture_stream(device: torch.device) -> torch.cuda.Stream:
    """The one stream on which graphs of a device are captured; hold `CAPTURING` to use it."""
    if device not in _capture:
        _capture[device] = torch.cuda.Stream(device)
    return _capture[device]
