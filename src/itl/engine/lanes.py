"""Several runs side by side on one GPU: each in its own thread, on its own stream, with its own graphs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Result = TypeVar("Result")


def side_by_side(jobs: Sequence[Callable[[], Result]], lanes: int, device: torch.device) -> list[Result]:
    """Run `jobs`, at most `lanes` at once, and return their results in order.

    On a CPU they run one after another: threads would only share the same cores. A job that fails does not stop the
    others; its exception is raised when all are done.
    """
    if device.type != "cuda" or lanes <= 1 or len(jobs) <= 1:
        return [job() for job in jobs]
    with ThreadPoolExecutor(min(lanes, len(jobs)), thread_name_prefix="lane") as threads:
        futures = [threads.submit(_on_own_stream, job, device) for job in jobs]
    return [future.result() for future in futures]


def _on_own_stream(job: Callable[[], Result], device: torch.device) -> Result:
    stream = torch.cuda.Stream(device)
    with torch.cuda.device(device), torch.cuda.stream(stream):
        result = job()
        with contextlib.suppress(RuntimeError):
            stream.synchronize()
    return result
