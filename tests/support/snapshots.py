"""Compares terminal output with committed files."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from rich.console import Console


def terminal(width: int) -> Console:
    """A console on standard output that behaves like a terminal of this width, without colors."""
    return Console(file=sys.stdout, width=width, height=40, force_terminal=True, color_system=None, highlight=False)


def compare_with_snapshot(text: str, path: Path) -> list[str]:
    """Assert that the lines of a text equal those of a file, and return them.

    With the environment variable ITL_UPDATE_SNAPSHOTS the file is written first.
    """
    lines = [line.rstrip() for line in text.splitlines()]
    if os.environ.get("ITL_UPDATE_SNAPSHOTS"):
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert lines == path.read_text(encoding="utf-8").splitlines()
    return lines
