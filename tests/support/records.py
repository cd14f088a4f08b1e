"""Reads what runs and models record, for comparisons."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def lines_of(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's `metrics.jsonl`."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def without_keys(value: Any, *keys: str) -> Any:
    """Nested dictionaries and lists without the entries named `keys`, such as times."""
    if isinstance(value, dict):
        return {key: without_keys(part, *keys) for key, part in value.items() if key not in keys}
    return [without_keys(part, *keys) for part in value] if isinstance(value, list) else value
