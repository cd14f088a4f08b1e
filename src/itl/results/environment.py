"""What a run ran on: hardware, versions and the commit of the code."""

from __future__ import annotations

import os
import platform
import subprocess
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

GIT_TIMEOUT_SECONDS = 10


def environment(device: torch.device) -> dict[str, Any]:
    """Return `hardware`, `versions` and `commit` for a record. Host names and paths are left out.

    Args:
        device: The device that the run trains on.

    Returns:
        `hardware` (device, CPU model, CPU count, threads, GPU model), `versions` (itl, python, torch, numpy, cuda) and
        `commit`: the git commit of the checkout the code runs from, ending in `-dirty` if tracked files were changed,
        or the environment variable `ITL_COMMIT` outside a checkout, as in a container, or None.
    """
    import torch  # deferred: reading records must not wait for torch

    import itl

    hardware: dict[str, Any] = {
        "device": device.type,
        "cpu": cpu_model(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }
    if device.type == "cuda":
        hardware["gpu"] = torch.cuda.get_device_name(device)
    versions = {
        "itl": itl.__version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
    }
    if torch.version.cuda:
        versions["cuda"] = torch.version.cuda
    commit = git_commit(Path(itl.__file__)) or os.environ.get("ITL_COMMIT")
    return {"hardware": hardware, "versions": versions, "commit": commit}


@cache
def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str | None:
    """The CPU's model name; None where the system does not report one."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return platform.processor() or None
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or None


@cache
def git_commit(file: Path) -> str | None:
    """The commit of the git checkout that tracks `file`, with `-dirty` appended if tracked files were changed."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(file.parent), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=GIT_TIMEOUT_SECONDS)
        return done.stdout.strip()

    try:
        git("ls-files", "--error-unmatch", file.name)  # an installed copy inside somebody's repository is not tracked
        return git("describe", "--always", "--abbrev=40", "--exclude=*", "--dirty") or None
    except (OSError, subprocess.SubprocessError):
        return None
