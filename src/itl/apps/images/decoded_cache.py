"""Disk cache of decoded images, keyed by the image files' paths and metadata, with a size limit.

The cache folder is `ITL_CACHE`, or `itl/images` in the user's cache folder; `ITL_CACHE=off` disables the cache. A cache
entry that is missing, damaged or cannot be written only costs the time to decode the images again.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from itl.streams.array_cache import cache_files, evict, has_disk_space, mark_used
from itl.user_cache import user_cache

__all__ = ["cache_folder", "cache_key", "clear_cache", "evict", "has_disk_space", "mark_used"]

DECODER_VERSION = 2  # part of every key: increase it whenever the same file would decode to different pixels


def cache_folder() -> Path | None:
    """Return the cache folder, or None if the cache is disabled."""
    return user_cache("images")


def cache_key(paths: Sequence[Path], size: int, interpolation: str = "bilinear") -> str | None:
    """Return a key for these files in their present state at this image size; None if one is inaccessible."""
    resize = str(size) if interpolation == "bilinear" else f"{size} {interpolation}"
    digest = hashlib.sha256(f"{DECODER_VERSION}/{resize}/{len(paths)}".encode())
    for path in paths:
        try:
            info = os.stat(path)
        except OSError:
            return None
        identity = (os.path.abspath(path), info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino)
        digest.update(repr(identity).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:40]


def clear_cache() -> None:
    """Remove all decoded images and all features of images from the caches."""
    for folder in (cache_folder(), user_cache("features")):
        if folder is None:
            continue
        for file in [file for suffix in ("json", "npy", "tmp") for file in cache_files(folder, suffix)]:
            with suppress(OSError):  # a file of another user in a shared cache folder
                file.unlink()
