"""The user's mistakes: one line that says what is wrong and how to mend it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake the user can mend. The command line prints its one line and exits with 2."""


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """The error for an unknown `kind` called `name`, naming the nearest valid names."""
    names = sorted(known)
    near = difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(names)}"
    return UserError(f"unknown {kind} '{name}'; {hint}")
