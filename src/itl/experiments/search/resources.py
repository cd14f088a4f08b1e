"""What this machine has, and what a piece of work was seen to take."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from itl.errors import UserError
from itl.experiments.search.optional_imports import need

if TYPE_CHECKING:
    import torch

ROOM = 0.9  # of what is free may be filled
GROUP = Path("/sys/fs/cgroup")


def cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_memory() -> int:
    """Bytes that are free: of the machine's memory, or of what a container may take of it."""
    free = int(need("psutil").virtual_memory().available)
    try:
        limit, used = ((GROUP / f"memory.{name}").read_text().strip() for name in ("max", "current"))
        return min(free, int(limit) - int(used)) if limit != "max" else free
    except (OSError, ValueError):
        return free


def resident(pid: int) -> int:
    """Bytes of memory that a process holds."""
    psutil = need("psutil")
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0


def processes(wanted: int | None, threads: int | None, work: int) -> tuple[int, int]:
    """How many processes on the cores here, of how many threads each; more than there are cores is refused."""
    here = cores()
    threads = threads or max(1, here // (wanted or here))
    count = wanted or max(1, here // threads)
    if count * threads > here:
        raise UserError(
            f"{count} processes of {threads} thread{'s'[: threads > 1]} each are more than the {here} cores here; "
            f"take --workers {max(1, here // threads)}" + (" and fewer --threads" if threads > here else "")
        )
    return min(count, max(1, work)), threads


def more_that_fit(each: int, free: int) -> int:
    """How many further processes fit into `free` bytes when one was seen to take `each`."""
    return int(free * ROOM) // max(1, each)


def lanes_that_fit(device: torch.device, wanted: int) -> int:
    """How many lanes fit on a GPU when one has taken what it has by now."""
    if device.type != "cuda":
        return wanted
    import torch

    free, _ = torch.cuda.mem_get_info(device)
    one = max(1, torch.cuda.max_memory_reserved(device))
    return max(1, min(wanted, 1 + int(free * ROOM) // one))
