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

    Each file's own name decides, so an image once learned is not tested on when others join it. Only where chance would
    leave a small class badly off does the number step in: of four or more at least one is held out, and never more
    than a third. What such a class learned beyond its share may be held out once it has grown.
    """
    place = {file: _hash(os.path.relpath(file, root)) for file in files}
    order = sorted(files, key=lambda file: place[file])
    count = sum(place[file] < share for file in files)
    out = set(order[: min(max(count, 1), len(files) // 3)]) if len(files) >= ENOUGH else set()
    return [file for file in files if file not in out], [file for file in files if file in out]


def _hash(name: str) -> float:
    """A number in [0, 1) for a name."""
    digest = hashlib.sha256(b"held-out/" + os.fsencode(name)).digest()
    return int.from_bytes(digest[:8], "big") / 2**64
