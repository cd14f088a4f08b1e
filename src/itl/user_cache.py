"""The folder for files that can be regenerated: decoded images, converted weights, features."""

from __future__ import annotations

import hashlib
import os
import re
from contextlib import suppress
from pathlib import Path

from itl.atomic import atomic_write
from itl.regular_files import read_regular

MAX_CACHED_BYTES = 4 << 30


def user_cache(kind: str) -> Path | None:
    """The cache folder of one kind of files, or None if caches are disabled or the user has no home folder.

    `ITL_CACHE` names the folder of decoded images, which contains the others; `ITL_CACHE=off` disables all of them.
    The default is `itl` in the user's cache folder.
    """
    setting = os.environ.get("ITL_CACHE")
    if setting is None:
        try:
            base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        except RuntimeError:  # the user has no home folder, as in some containers
            return None
        return Path(base) / "itl" / kind
    if setting.lower() in ("", "0", "off", "none"):
        return None
    return Path(setting) if kind == "images" else Path(setting) / kind


def read_cached(file: Path) -> bytes | None:
    """What `write_cached` was given for this path; None if it is missing, cannot be read or is damaged."""
    name = re.compile(re.escape(f"{file.stem}-") + "([0-9a-f]{64})" + re.escape(file.suffix))
    with suppress(OSError):
        for cached in sorted(file.parent.iterdir()):
            if found := name.fullmatch(cached.name):
                with suppress(OSError):
                    data = read_regular(cached, MAX_CACHED_BYTES)
                    if hashlib.sha256(data).hexdigest() == found[1]:
                        return data
    return None


def write_cached(file: Path, data: bytes) -> None:
    """Write data to a file whose name is that of `file` and their checksum: `NAME-SHA256.SUFFIX`.

    A cache that cannot be written to is left as it is.
    """
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(file.with_name(f"{file.stem}-{hashlib.sha256(data).hexdigest()}{file.suffix}")) as draft:
            draft.write(data)
