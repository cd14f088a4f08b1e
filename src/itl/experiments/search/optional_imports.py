"""Imports of the packages that the extra `search` installs."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from itl.errors import UserError


def import_optional(module: str) -> Any:
    """Import a module of the extra `search`, or raise a `UserError` that says how to install it."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray must not send usage statistics
    try:
        return import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        package = {"yaml": "pyyaml"}.get(package, package)
        raise UserError(f"{package} is not installed. Run pip install 'itl[search]'.") from None
