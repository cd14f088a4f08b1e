"""Libraries of the extra `search`, imported when needed; one that is missing is said in a line."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from itl.errors import UserError


def need(module: str) -> Any:
    """The module, or how to get it."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is told to anybody
    try:
        return import_module(module)
    except ImportError:
        name = {"yaml": "pyyaml"}.get(module.partition(".")[0], module.partition(".")[0])
        raise UserError(f"this needs {name}, which is not installed; pip install 'itl[search]'") from None
