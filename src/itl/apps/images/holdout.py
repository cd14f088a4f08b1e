"""Which images of a class are held out for testing: decided by their names alone, so that it stays the same."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Sequence
from pathlib import Path

SHARE = 0.2
ENOUGH = 4  # images: a class of fewer holds none out
ALL = "*"  # beside a class's marks: all that it had then is learned, also what no name would have held out


def split_held_out(
    files: Sequence[Path], root: Path, share: float = SHARE, learned: Collection[str] = ()
) -> tuple[list[Path], list[Path]]:
    """The files of one class as (to learn from, held out), in their order.

    Each file's own name decides, so an image once learned is not tested on when others join it. Only where chance would
    leave a small class badly off does the number step in: of four or more at least one is held out, and never more
    than a third. What a class has learned beyond its share stays learned: `learned`, the marks that `beyond` gave. Once
    all of it was, names alone decide: the one that is held out for its number could be one of these.
    """
    marks = {file: _mark(file, root) for file in files}
    free = sorted((file for file in files if marks[file] not in learned), key=lambda file: marks[file])
    count = sum(_by_name(marks[file], share) for file in free)
    least = 0 if ALL in learned else 1
    out = set(free[: min(max(count, least), len(files) // 3)]) if len(files) >= ENOUGH else set()
    return [file for file in files if file not in out], [file for file in files if file in out]


def beyond(kept: Sequence[Path], out: Sequence[Path], root: Path, share: float = SHARE) -> list[str]:
    """The marks of those files of a class that are learned from now and might be held out once others join them."""
    marks = [_mark(file, root) for file in kept]
    if len(kept) + len(out) < ENOUGH:
        return marks
    return [*([] if out else [ALL]), *(mark for mark in marks if _by_name(mark, share))]


def _mark(file: Path, root: Path) -> str:
    """Sixteen digits for a file's name."""
    name = os.fsencode(os.path.relpath(file, root))
    return hashlib.sha256(b"held-out/" + name).hexdigest()[:16]


def _by_name(mark: str, share: float) -> bool:
    """Whether a name alone would have its file held out."""
    return int(mark, 16) / 2**64 < share
