"""CPU cores and memory of this machine, and how many jobs fit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from itl.cpu import available_cores
from itl.errors import UserError
from itl.experiments.search.optional_imports import import_optional

if TYPE_CHECKING:
    import torch

USABLE_MEMORY_FRACTION = 0.9
CGROUP = Path("/sys/fs/cgroup")


def free_memory() -> int:
    """Free memory in bytes, within the limit of the container if there is one."""
    free = int(import_optional("psutil").virtual_memory().available)
    try:
        limit, used = ((CGROUP / f"memory.{name}").read_text().strip() for name in ("max", "current"))
        return min(free, int(limit) - int(used)) if limit != "max" else free
    except (OSError, ValueError):
        return free


def resident_memory(pid: int) -> int:
    """Resident memory of a process in bytes; 0 if it has ended."""
    psutil = import_optional("psutil")
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0


def plan_processes(workers: int | None, threads: int | None, jobs: int) -> tuple[int, int]:
    """Number of processes and of threads per process.

    Args:
        workers: Number of processes, or None for as many as the cores allow.
        threads: Threads per process, or None to divide the cores among the processes.
        jobs: Number of jobs; there are never more processes than jobs.

    Raises:
        UserError: If this needs more cores than this machine has.
    """
    cores = available_cores()
    threads = threads or max(1, cores // (workers or cores))
    count = workers or max(1, cores // threads)
    if count * threads > cores:
        raise UserError(
            f"{count} processes of {threads} thread{'s'[: threads > 1]} each need more than the {cores} cores of this "
            f"machine. Use --workers {max(1, cores // threads)}" + (" and fewer --threads." if threads > cores else ".")
        )
    return min(count, max(1, jobs)), threads


def processes_that_fit(bytes_per_process: int, free: int) -> int:
    """Number of additional processes that fit into `free` bytes."""
    return int(free * USABLE_MEMORY_FRACTION) // max(1, bytes_per_process)


def runs_that_fit(device: torch.device, limit: int) -> int:
    """Number of concurrent runs, at most `limit`, whose memory fits on a GPU that has one run so far."""
    if device.type != "cuda":
        return limit
    import torch

    free, _ = torch.cuda.mem_get_info(device)
    bytes_per_run = max(1, torch.cuda.max_memory_reserved(device))
    return max(1, min(limit, 1 + int(free * USABLE_MEMORY_FRACTION) // bytes_per_run))
