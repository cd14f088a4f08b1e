"""Continual learning: Integral Tangent Learning (ITL), its baselines and its benchmark.

`Learner` trains on tasks of labeled images. `Model` is a learner in a folder, with class names and a history; `load`
opens one. `streams` builds the benchmark's sequences of tasks. `UserError` reports what a user can correct.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from itl import _deprecated
from itl.errors import UserError

if TYPE_CHECKING:
    from itl import streams
    from itl.apps.model import Model, load
    from itl.learner import Learner

__all__ = ["Learner", "Model", "UserError", "load", "streams"]
__version__ = "0.2.0"

_deprecated.install()

# Imported on first use: importing torch takes seconds, and `itl --help` should be fast.
_LOCATIONS = {"Learner": "itl.learner", "Model": "itl.apps.model", "load": "itl.apps.model", "streams": "itl.streams"}


def __getattr__(name: str) -> Any:
    if name not in _LOCATIONS:
        raise AttributeError(f"module 'itl' has no attribute '{name}'")
    module = import_module(_LOCATIONS[name])
    return module if name == "streams" else getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
