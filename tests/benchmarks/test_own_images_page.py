"""The table of docs/own-data.md is that of the records."""

from __future__ import annotations

from pathlib import Path

from benchmarks.own_images import table_lines

ROOT = Path(__file__).parents[2]


def test_table_is_that_of_the_records():
    text = (ROOT / "docs" / "own-data.md").read_text()
    expected = list(table_lines(ROOT / "benchmarks" / "results" / "own-images" / "measurements.jsonl"))
    assert len(expected) > 2
    assert "\n".join(expected) in text
