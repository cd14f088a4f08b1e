"""Decoded images kept on the disk, keyed by which files they were made from, in a folder that does not grow for ever.

The folder is ITL_CACHE, or itl/images in the user's cache folder; ITL_CACHE=off keeps nothing. A cache is never needed:
one that is missing, damaged, or cannot be written only costs the time to decode again.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

FORMAT = 2  # raise it whenever the same file would be decoded to other pixels
LIMIT = 8 << 30  # bytes kept of all sets of images together, the newest excepted
NAME = re.compile(r"[0-9a-f]{40}(?![0-9a-f])")  # what the name of a kept file begins with
SPARE = 1 << 30  # bytes of the disk never to be used


def folder() -> Path | None:
    """Where decoded images are kept, or None."""
    named = os.environ.get("ITL_CACHE")
    if named is None:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return Path(base) / "itl" / "images"
    return None if named.lower() in ("", "0", "off", "none") else Path(named)


def key(paths: Sequence[Path], size: int) -> str | None:
    """One name for these files as they are now, at this size; None where one of them cannot even be looked at."""
    digest = hashlib.sha256(f"{FORMAT}/{size}/{len(paths)}".encode())
    for path in paths:
        try:
            state = os.stat(path)
        except OSError:
            return None
        words = (os.path.abspath(path), state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino)
        digest.update(repr(words).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:40]


def has_room(place: Path, bytes_: int) -> bool:
    """Whether the disk takes so much more and keeps some to spare."""
    try:
        place.mkdir(parents=True, exist_ok=True)
        return os.access(place, os.W_OK) and shutil.disk_usage(place).free - bytes_ > SPARE
    except OSError:
        return False


def trim(place: Path, newest: str, limit: int = LIMIT) -> None:
    """Remove what was not used for longest until the rest is within the limit; `newest` stays.

    Whoever has one of the removed files mapped into memory keeps it until done with it.
    """
    sets = []
    for about in _ours(place, "json"):
        try:
            files = [about, *place.glob(f"{about.stem}-*.npy")]
            sets.append((about.stat().st_mtime_ns, sum(file.stat().st_size for file in files), files))
        except OSError:
            continue  # another process is removing it
    total = sum(size for _, size, _ in sets)
    for _, size, files in sorted(sets):
        if total <= limit:
            return
        if files[0].stem != newest:
            for file in files:
                file.unlink(missing_ok=True)
            total -= size


def touch(place: Path, name: str) -> None:
    """Note that a set of images was used."""
    try:
        os.utime(place / f"{name}.json")
    except OSError:
        return


def clear_cache() -> None:
    """Remove every decoded image that is kept."""
    place = folder()
    if place is not None:
        for file in [file for kind in ("json", "npy", "tmp") for file in _ours(place, kind)]:
            with suppress(OSError):  # somebody else's, whose images are none of ours
                file.unlink()


def _ours(place: Path, kind: str) -> list[Path]:
    """The files of that kind with a name that `key` gave, among whatever else lies there."""
    return [file for file in place.glob(f"*.{kind}") if NAME.match(file.name.lstrip("."))]
