"""Cells of CSV files whose texts, such as names of files and classes, are untrusted."""

from __future__ import annotations

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n")


def plain_cell(text: str) -> str:
    """Return text that a spreadsheet does not take for a formula."""
    return f"'{text}" if text.startswith(FORMULA_STARTS) else text
