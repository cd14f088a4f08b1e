"""`benchmarks/speed_pages.py`: the pages show the recorded speeds."""

from __future__ import annotations

import json
import re
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


def test_methods_page_shows_the_recorded_steps() -> None:
    page = (HOME / "docs" / "methods.md").read_text()
    shown = {line for line in page.splitlines() if re.match(r"\| `[\w-]+` \| [\d.]+ \| [\d.]+x \|", line)}
    speed = HOME / "benchmarks" / "results" / "speed"
    files = ("h200-methods-metasp.json", "h200-methods.json")  # both contain er and metasp
    special, usual = (
        {row["method"]: row for row in json.loads((speed / file).read_text())["methods"]} for file in files
    )
    rows = usual | {"metasp": special["metasp"]}
    assert shown == {
        f"| `{row['method']}` | {row['ms']:.2f} | {row['ratio']:.2f}x | {row['explained']:.2f}x | {row['factor']:.2f} |"
        for row in rows.values()
    }


def test_report_page_shows_the_recorded_cost() -> None:
    page = (HOME / "docs" / "report.md").read_text()
    record = json.loads((HOME / "benchmarks" / "results" / "speed" / "recording.json").read_text())
    short, long = (record[name]["percent"] for name in ("15 epochs", "100 epochs"))
    shown = dict(re.findall(r"^\| ([\w ]+) \| ([\d.]+ \| [\d.]+) \|$", page, re.MULTILINE))
    for label, key, digits in (
        ("writing the record", "record", 2),
        ("TensorBoard files", "tensorboard", 1),
        ("terminal display", "display", 2),
        ("evaluations within stages", "curves", 1),
    ):
        assert shown[label] == f"{short[key]:.{digits}f} | {long[key]:.{digits}f}"
