"""Read untrusted JSON: everything that is wrong with it is a `ValueError`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from itl.regular_files import read_regular

MAX_DEPTH = 100  # no file of itl is nested deeper; Python's own limit depends on the caller


def parse_json(text: str | bytes, pairs_hook: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """Parse JSON.

    Args:
        text: The JSON text; bytes are UTF-8.
        pairs_hook: `object_pairs_hook` of `json.loads`.

    Raises:
        ValueError: The text is not valid JSON, is nested too deeply or contains a number with thousands of digits.
    """
    text = text if isinstance(text, str) else text.decode("utf-8")
    try:
        value = json.loads(text, object_pairs_hook=pairs_hook)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if text.count("[") + text.count("{") > MAX_DEPTH:  # with fewer it cannot be nested deeper
        check_depth(value)
    return value


def read_json(path: Path) -> Any:
    """Parse a JSON file.

    Raises:
        OSError: The file cannot be read, is not a regular file or is too large.
        ValueError: As in `parse_json`.
    """
    return parse_json(read_regular(path))


def check_depth(value: Any, limit: int = MAX_DEPTH) -> None:
    """Raise a `ValueError` if lists and mappings are nested more than `limit` deep."""
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(limit):
        if not level:
            return
        parts = (part for whole in level for part in (whole.values() if isinstance(whole, dict) else whole))
        level = [part for part in parts if isinstance(part, (dict, list))]
    raise ValueError("it is nested too deeply")
