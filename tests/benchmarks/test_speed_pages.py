"""`benchmarks/speed_pages.py`: the pages show the recorded speeds."""

from __future__ import annotations

import runpy
from pathlib import Path

HOME = Path(__file__).parents[2]
NAMES = runpy.run_path(str(HOME / "benchmarks" / "speed_pages.py"))


def test_pages_show_the_recorded_speeds() -> None:
    for (page, name), text in NAMES["texts"]().items():
        expected = f"<!-- results:{name} -->\n{text}\n<!-- /results -->"
        assert expected in (HOME / page).read_text(), f"{page}: run python benchmarks/speed_pages.py"


def test_missed_target_is_named() -> None:
    bench = NAMES["record"]("h200-bench.json")
    assert "not reached" not in "".join(NAMES["step_rows"](bench))
    bench["ours"]["er"]["ms"] = 1.71
    assert NAMES["step_rows"](bench)[0].split(" | ")[-1] == "not reached |"


def test_mammoth_is_compared_by_its_record() -> None:
    row = {"mammoth_ms": 20.04, "ours_ms": 1.5, "ratio": 13.36}
    record = {"hardware": {"gpu": "NVIDIA H200"}, "versions": {"torch": "2.11.0"}, "mammoth_commit": "e75a491c69fd"}
    text = NAMES["mammoth_text"](record | {"methods": {"er": row}})
    assert text.startswith("NVIDIA H200, torch 2.11.0, mammoth e75a491c (")
    assert text.endswith("| er | 1.50 | 20.0 | 13x |")
