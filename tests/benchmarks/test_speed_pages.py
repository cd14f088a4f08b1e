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
