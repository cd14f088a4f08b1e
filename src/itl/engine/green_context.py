"""A stream whose kernels run on some of a GPU's multiprocessors and leave the others to whoever else is there.

CUDA calls it a green context and has it since version 12.4. What cannot be had is None: nobody depends on it.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

RESOURCE = 64  # 64-bit words, more than what the driver describes a resource by
MULTIPROCESSORS, DEFAULT_STREAM, NON_BLOCKING = 1, 1, 1  # as the driver numbers them


class _Refused(Exception):
    """The driver does not know a function, or does not do it."""


def stream_on(device: torch.device, share: float) -> torch.cuda.Stream | None:
    """A stream on a share of the multiprocessors, rounded up as the device demands; None where it cannot be had."""
    with torch.cuda.device(device):
        torch.empty(1, device=device)  # the primary context is there then
        count = round(share * torch.cuda.get_device_properties(device).multi_processor_count)
        try:
            return torch.cuda.ExternalStream(_made(_driver(), torch.cuda.current_device(), count), device)
        except _Refused:
            return None


def _driver() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise _Refused from error


def _made(driver: Any, index: int, count: int) -> int:
    """The stream's handle. The context it belongs to lives as long as the process."""

    def call(name: str, *args: Any) -> None:
        function = getattr(driver, name, None)
        if function is None or function(*args) != 0:
            raise _Refused(name)

    every, some, rest = ((ctypes.c_uint64 * RESOURCE)() for _ in range(3))
    call("cuDeviceGetDevResource", index, every, MULTIPROCESSORS)
    groups, least = ctypes.c_uint(1), ctypes.c_uint(count)
    call("cuDevSmResourceSplitByCount", some, ctypes.byref(groups), every, rest, ctypes.c_uint(0), least)
    described, context, stream = (ctypes.c_void_p() for _ in range(3))
    call("cuDevResourceGenerateDesc", ctypes.byref(described), some, ctypes.c_uint(1))
    call("cuGreenCtxCreate", ctypes.byref(context), described, index, ctypes.c_uint(DEFAULT_STREAM))
    call("cuGreenCtxStreamCreate", ctypes.byref(stream), context, ctypes.c_uint(NON_BLOCKING), 0)
    assert stream.value is not None
    return stream.value
