"""Skip a test module if a package is missing, without importing the package when tests are collected."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


def require(*packages: str) -> None:
    """Skip the calling test module unless all `packages` are installed."""
    for name in packages:
        if find_spec(name) is None:
            pytest.skip(f"{name} is not installed", allow_module_level=True)
