"""Read the pickles CIFAR is distributed in, and nothing else that a pickle could hold or do."""

from __future__ import annotations

import _codecs
import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np

from itl.errors import UserError

# A pickle names functions to call; these are all that a dict of lists, strings and one NumPy array needs. NumPy's own
# function is taken from an array, since its module moved between NumPy 1 and 2.
_RECONSTRUCT: Any = np.empty(0).__reduce__()[0]
_ADMITTED: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _codecs.encode,
}


class _Restricted(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Callable[..., Any]:
        if (module, name) not in _ADMITTED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return _ADMITTED[module, name]


def load_dict(data: bytes, what: object) -> dict[str, Any]:
    """The dict in a pickle written by Python 2 or 3, with str keys; `what` names it in errors."""
    try:
        # latin1 is how NumPy asks for arrays pickled under Python 2 to be read.
        found = _Restricted(io.BytesIO(data), encoding="latin1").load()
    except Exception as error:  # a pickle that is not one fails in any way it likes
        why = " ".join(str(error).split())
        raise UserError(f"{what} is not a CIFAR file ({why}); put the official one there") from error
    if not isinstance(found, dict):
        raise UserError(f"{what} is not a CIFAR file (it holds no dict); put the official one there")
    return {key.decode("latin1") if isinstance(key, bytes) else str(key): value for key, value in found.items()}
