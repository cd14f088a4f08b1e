"""Errors that the user can fix, reported in one line."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake that the user can fix. The command line prints the message and exits with code 2."""


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """The error for an unknown `kind` called `name`, with the closest valid names.

    Args:
        kind: What the name should be, such as "method".
        name: The unknown name.
        known: All valid names.
    """
    names = sorted(known)
    near = difflib.get_close_matches(str(name).lower(), names, n=3, cutoff=0.5)
    quoted = " or ".join(f"'{match}'" for match in near)
    hint = f"Did you mean {quoted}?" if near else f"Known: {', '.join(names)}."
    return UserError(f"Unknown {kind} '{name}'. {hint}")
