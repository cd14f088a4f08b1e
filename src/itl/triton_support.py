"""Load and launch the package's Triton kernels where Triton and a suitable device are available."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
from typing import Any

import torch

DEVICE_TYPES = {"cuda"}  # tests add "cpu", where Triton's interpreter runs the kernels


def supports_triton(device: torch.device) -> bool:
    """Whether computation on `device` may use the package's own kernels and their memory layout."""
    return device.type in DEVICE_TYPES


@functools.cache
def load_kernels(module: str) -> Any:
    """Import the kernel module `module` (a dotted name); None without Triton."""
    if importlib.util.find_spec("triton") is None:
        return None
    return importlib.import_module(module)


def kernels_for(device: torch.device, module: str) -> Any:
    """The kernel module `module` if its kernels can be launched on `device`, else None."""
    return load_kernels(module) if supports_triton(device) else None


def device_guard(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Make `device` the current CUDA device, which non-PyTorch kernels are launched on; a no-op on a CPU."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
