"""Reads the pickles of CIFAR without building the objects that they describe.

A pickle names functions to call with any arguments, and even NumPy's own can crash the process: the state of a dtype
may claim that bytes are pointers to objects. Here the functions are replaced by classes that accept exactly what the
files of CIFAR contain, a dict of lists, strings and a uint8 array.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Callable
from typing import Any

import numpy as np

from itl.errors import UserError

_UINT8_STATE = (3, "|", None, None, None, -1, -1, 0)
_MAX_MEMO = 1 << 20  # entries that a pickle may number; its memo is allocated at once


class _UInt8:
    """Replaces `numpy.dtype`; accepts only the dtype uint8."""

    def __init__(self, name: str, *_: Any) -> None:
        if name != "u1":
            raise pickle.UnpicklingError(f"it contains an array of {name!s:.20}")

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, tuple) or state[:8] != _UINT8_STATE:
            raise pickle.UnpicklingError("it contains an unusual dtype")


class _Array:
    """Replaces `numpy.ndarray`; `values` is the array once its state is known."""

    values: np.ndarray | None = None

    def __init__(self, *_: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, in_columns, content = state
        if isinstance(content, str):  # bytes that were pickled by Python 2
            content = content.encode("latin1")
        if not isinstance(dtype, _UInt8) or not isinstance(content, bytes) or not isinstance(shape, tuple):
            raise pickle.UnpicklingError("it contains an unusual array")
        self.values = np.frombuffer(content, np.uint8).reshape(shape, order="F" if in_columns else "C").copy()


def _reconstruct(*_: Any) -> _Array:
    return _Array()


def _encode(text: str, encoding: str) -> bytes:
    if not isinstance(text, str) or encoding != "latin1":
        raise pickle.UnpicklingError("it contains an unusual encoding")
    return text.encode("latin1")


_ALLOWED: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _UInt8,
    ("_codecs", "encode"): _encode,
}


class _RestrictedUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Callable[..., Any]:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it contains {module}.{name}")
        return _ALLOWED[module, name]


def load_dict(data: bytes, name: object) -> dict[str, Any]:
    """Load a pickled dict, written by Python 2 or 3, with str keys.

    Args:
        data: The pickle.
        name: Name of the file, for error messages.

    Raises:
        UserError: `data` is not a pickle, or contains anything but a dict of lists, strings and uint8 arrays.
    """
    try:
        for opcode, argument, _ in pickletools.genops(data):
            if "PUT" in opcode.name and int(argument or 0) > _MAX_MEMO:
                raise pickle.UnpicklingError("it numbers too many objects")
        # NumPy requires latin1 for arrays that were pickled by Python 2.
        found = _RestrictedUnpickler(io.BytesIO(data), encoding="latin1").load()
    except Exception as error:  # invalid pickles raise many types of exception
        why = " ".join(str(error).split())[:200]
        raise UserError(f"{name} is not a CIFAR file ({why}); put the official file there") from error
    if not isinstance(found, dict):
        raise UserError(f"{name} is not a CIFAR file (it holds no dict); put the official file there")
    return {
        key.decode("latin1") if isinstance(key, bytes) else str(key): value.values
        if isinstance(value, _Array)
        else value
        for key, value in found.items()
    }
