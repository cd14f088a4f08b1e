"""Where a room's Triton kernels are, on a machine that has Triton."""

from __future__ import annotations

import functools
import importlib
from typing import Any


@functools.cache
def kernels_of(room: str) -> Any:
    """The module `itl.<room>.kernels`; None without Triton."""
    try:
        return importlib.import_module(f"itl.{room}.kernels")
    except ImportError:
        return None
