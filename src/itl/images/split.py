"""Which images of a class are held out for testing: decided by their names alone, so that it stays the same."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

SHARE = 0.2
ENOUGH = 4  # images: a class of fewer holds none out


def hold_out(files: Sequence[Path], root: Path, share: float = SHARE) -> tuple[list[Path], list[Path]]:
    """The files of one class as (to learn from, held out), in their order.

    Each file's own name decides, so an image once learned is never tested on when others join it. A class of four
    or more holds at least one out, and never all.
    """
    place = {file: _hash(os.path.relpath(file, root)) for file in files}
    out = {file for file in files if place[file] < share}
    if len(files) < ENOUGH:
        out = set()
    elif not out:
        out = {min(files, key=lambda file: place[file])}
    elif len(out) == len(files):
        out.remove(max(files, key=lambda file: place[file]))
    return [file for file in files if file not in out], [file for file in files if file in out]


def _hash(name: str) -> float:
    """A number in [0, 1) for a name."""
    digest = hashlib.sha256(b"held-out/" + os.fsencode(name)).digest()
    return int.from_bytes(digest[:8], "big") / 2**64
