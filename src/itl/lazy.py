"""Packages whose names are imported on first use, because importing torch or an optional package takes seconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy_names(package: str, names_by_module: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """The `__getattr__` of a package.

    Args:
        package: Name of the package.
        names_by_module: Public names of the package, by the submodule that defines them.
    """
    modules = {name: module for module, names in names_by_module.items() for name in names}

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        return getattr(import_module(f"{package}.{modules[name]}"), name)

    return get
