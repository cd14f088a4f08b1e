"""A CUDA stream restricted to some of a GPU's multiprocessors (a "green context", CUDA 12.4 and later).

It is an optimization only: where the driver does not provide it, the functions return None.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

RESOURCE_WORDS = 64  # 64-bit words; more than the driver's resource descriptor needs
SM_RESOURCE, DEFAULT_STREAM, NON_BLOCKING = 1, 1, 1  # the driver's constants


class _Unavailable(Exception):
    """The driver lacks a function, or the function failed."""


def stream_on(device: torch.device, share: float) -> torch.cuda.Stream | None:
    """A stream on a share of the multiprocessors, rounded up as the device requires; None if unavailable."""
    with torch.cuda.device(device):
        torch.empty(1, device=device)  # creates the primary context
        count = round(share * torch.cuda.get_device_properties(device).multi_processor_count)
        try:
            return torch.cuda.ExternalStream(_create(_driver(), torch.cuda.current_device(), count), device)
        except _Unavailable:
            return None


def _driver() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise _Unavailable from error


def _create(driver: Any, index: int, count: int) -> int:
    """The handle of a new stream on `count` multiprocessors. Its context lives as long as the process."""

    def call(name: str, *args: Any) -> None:
        function = getattr(driver, name, None)
        if function is None or function(*args) != 0:
            raise _Unavailable(name)

    everything, selected, remaining = ((ctypes.c_uint64 * RESOURCE_WORDS)() for _ in range(3))
    call("cuDeviceGetDevResource", index, everything, SM_RESOURCE)
    groups, minimum = ctypes.c_uint(1), ctypes.c_uint(count)
    call(
        "cuDevSmResourceSplitByCount", selected, ctypes.byref(groups), everything, remaining, ctypes.c_uint(0), minimum
    )
    descriptor, context, stream = (ctypes.c_void_p() for _ in range(3))
    call("cuDevResourceGenerateDesc", ctypes.byref(descriptor), selected, ctypes.c_uint(1))
    call("cuGreenCtxCreate", ctypes.byref(context), descriptor, index, ctypes.c_uint(DEFAULT_STREAM))
    call("cuGreenCtxStreamCreate", ctypes.byref(stream), context, ctypes.c_uint(NON_BLOCKING), 0)
    assert stream.value is not None
    return stream.value
