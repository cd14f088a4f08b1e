"""Disk cache of decoded images, keyed by the image files' paths and metadata, with a size limit.

The cache folder is `ITL_CACHE`, or `itl/images` in the user's cache folder; `ITL_CACHE=off` disables the cache. A cache
entry that is missing, damaged or cannot be written only costs the time to decode the images again.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

DECODER_VERSION = 2  # part of every key: increase it whenever the same file would decode to different pixels
MAX_CACHE_BYTES = 8 << 30  # of all entries together; the newest entry may exceed it
MIN_FREE_DISK_BYTES = 1 << 30
CACHE_FILE_NAME = re.compile(r"[0-9a-f]{40}(?![0-9a-f])")  # prefix of every cache file's name


def cache_folder() -> Path | None:
    """Return the cache folder, or None if the cache is disabled."""
    setting = os.environ.get("ITL_CACHE")
    if setting is None:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return Path(base) / "itl" / "images"
    return None if setting.lower() in ("", "0", "off", "none") else Path(setting)


def cache_key(paths: Sequence[Path], size: int) -> str | None:
    """Return a key for these files in their present state at this image size; None if one is inaccessible."""
    digest = hashlib.sha256(f"{DECODER_VERSION}/{size}/{len(paths)}".encode())
    for path in paths:
        try:
            info = os.stat(path)
        except OSError:
            return None
        identity = (os.path.abspath(path), info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino)
        digest.update(repr(identity).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:40]


def has_disk_space(folder: Path, size: int) -> bool:
    """Return whether `folder` is writable and `size` more bytes leave `MIN_FREE_DISK_BYTES` on its disk."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return os.access(folder, os.W_OK) and shutil.disk_usage(folder).free - size > MIN_FREE_DISK_BYTES
    except OSError:
        return False


def evict(folder: Path, newest: str, limit: int = MAX_CACHE_BYTES) -> None:
    """Remove the least recently used entries, but not `newest`, until all entries together are within `limit` bytes.

    A process that has a removed file mapped into memory can continue to use it.
    """
    entries = []
    for index_file in _cache_files(folder, "json"):
        try:
            files = [index_file, *folder.glob(f"{index_file.stem}-*.npy")]
            entries.append((index_file.stat().st_mtime_ns, sum(file.stat().st_size for file in files), files))
        except OSError:
            continue  # another process is removing this entry
    total = sum(size for _, size, _ in entries)
    for _, size, files in sorted(entries):
        if total <= limit:
            return
        if files[0].stem != newest:
            for file in files:
                file.unlink(missing_ok=True)
            total -= size


def mark_used(folder: Path, key: str) -> None:
    """Record that a cache entry was used now."""
    with suppress(OSError):
        os.utime(folder / f"{key}.json")


def clear_cache() -> None:
    """Remove all decoded images from the cache."""
    folder = cache_folder()
    if folder is not None:
        for file in [file for suffix in ("json", "npy", "tmp") for file in _cache_files(folder, suffix)]:
            with suppress(OSError):  # a file of another user in a shared cache folder
                file.unlink()


def _cache_files(folder: Path, suffix: str) -> list[Path]:
    """Return the cache's own files with this suffix; the folder may contain other files."""
    return [file for file in folder.glob(f"*.{suffix}") if CACHE_FILE_NAME.match(file.name.lstrip("."))]
