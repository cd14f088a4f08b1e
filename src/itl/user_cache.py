"""The folder for files that can be made again: decoded images, converted weights, features."""

from __future__ import annotations

import os
from pathlib import Path


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
