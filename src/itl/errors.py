"""Errors that the user can fix, reported in one line."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

MAX_LISTED = 30  # names in one message


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
    if len(names) > MAX_LISTED:  # too many to list: always name the nearest three
        near = sorted(names, key=lambda one: _similarity(str(name).lower(), one), reverse=True)[:3]
    *first, last = [f"'{match}'" for match in near] or [""]
    quoted = f"{', '.join(first)} or {last}" if first else last
    hint = f"Did you mean {quoted}?" if near else f"Known: {', '.join(names)}."
    return UserError(f"Unknown {kind} '{name}'. {hint}")


def _similarity(name: str, other: str) -> float:
    """How similar two names are, from 0 to 1; a dotted name also counts by its last part, a little less."""
    whole = difflib.SequenceMatcher(None, name, other).ratio()
    last = difflib.SequenceMatcher(None, name.rpartition(".")[2], other.rpartition(".")[2]).ratio()
    return max(whole, 0.95 * last)
