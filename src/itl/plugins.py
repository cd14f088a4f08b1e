"""Entry points: the methods, streams, memory policies and backbones that other installed packages provide."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import Any

from itl._deprecated import entry_points_of
from itl.errors import UserError


def find_all(group: str) -> dict[str, EntryPoint]:
    """The entry points of `group`, such as `itl.methods`, by name, in alphabetical order. Nothing is imported."""
    return {point.name: point for point in sorted(entry_points_of(group), key=lambda point: point.name)}


def load(kind: str, point: EntryPoint, expected: type) -> Any:
    """Import what an entry point refers to.

    Args:
        kind: What the group provides, for error messages: "method", "stream", "backbone".
        point: One of `find_all`'s entry points.
        expected: The object must be an instance of this class, or a subclass of it.

    Raises:
        UserError: If the import fails or the object is of another kind.
    """
    try:
        found = point.load()
    except Exception as error:  # code of another package: any exception is possible
        reason = " ".join(str(error).split())
        raise UserError(
            f"the {kind} {point.name} ({point.value}) cannot be loaded: {reason}; fix or uninstall its package"
        ) from error
    if not (isinstance(found, expected) or (isinstance(found, type) and issubclass(found, expected))):
        raise UserError(
            f"the {kind} {point.name} ({point.value}) is not a {expected.__name__}; fix or uninstall its package"
        )
    return found
