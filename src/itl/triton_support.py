"""Where a room's Triton kernels are, on a machine that has Triton, and how they are launched."""

from __future__ import annotations

import contextlib
import functools
import importlib
from typing import Any

import torch

DEVICES = {"cuda"}  # kinds of devices they are launched on; where Triton interprets them, tests add the CPU


def launchable(device: torch.device) -> bool:
    """Whether what is computed on a device may be computed by kernels of our own, and laid out for them."""
    return device.type in DEVICES


@functools.cache
def kernels_of(room: str) -> Any:
    """The module `itl.<room>.kernels`; None without Triton."""
    try:
        return importlib.import_module(f"itl.{room}.kernels")
    except ImportError:
        return None


def kernels_on(device: torch.device, room: str) -> Any:
    """The module `itl.<room>.kernels` where its kernels are launched on that device; else None."""
    return kernels_of(room) if launchable(device) else None


def launching_on(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Within, the device is the present one, to which kernels that are not PyTorch's own go."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
