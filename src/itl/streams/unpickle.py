"""A restricted unpickler for the files of CIFAR, which cannot run code."""

from __future__ import annotations

import _codecs
import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np

from itl.errors import UserError

# A pickle names functions to call. A dict of lists, strings and a NumPy array needs only these. NumPy's function is
# taken from an array because its module was renamed between NumPy 1 and 2.
_RECONSTRUCT: Any = np.empty(0).__reduce__()[0]
_ALLOWED: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _codecs.encode,
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
        UserError: `data` is not a pickle, or contains anything but a dict of lists, strings and arrays.
    """
    try:
        # NumPy requires latin1 for arrays that were pickled by Python 2.
        found = _RestrictedUnpickler(io.BytesIO(data), encoding="latin1").load()
    except Exception as error:  # invalid pickles raise many types of exception
        why = " ".join(str(error).split())
        raise UserError(f"{name} is not a CIFAR file ({why}); put the official file there") from error
    if not isinstance(found, dict):
        raise UserError(f"{name} is not a CIFAR file (it holds no dict); put the official file there")
    return {key.decode("latin1") if isinstance(key, bytes) else str(key): value for key, value in found.items()}
