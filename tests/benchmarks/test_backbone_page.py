"""The tables of docs/backbones.md show what the records of benchmarks/backbones.py contain."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "benchmarks" / "results" / "backbones" / "measurements.jsonl"
RIDGES = (300, 1000, 3000, 10000)
# Names of rows on the page, and of the rows of the benchmark.
SUFFIXES = {", default": "-default", ", width 10,000": "-10000", ", last block": "+block", ", whole network": "+whole"}


def latest(part: str, words: str = "", row: str | None = None) -> dict[str, Any]:
    """Result of the last record of a part whose command contains `words`, and whose table has a row."""
    records = [json.loads(line) for line in RECORDS.read_text().splitlines()]
    complete = [record for record in records if record["part"] == part and not record.get("interrupted")]
    found = [record["result"] for record in complete if words in record["command"]]
    return [result for result in found if row is None or row in result["rows"]][-1]


def rows(heading: str) -> list[list[str]]:
    """Cells of the table that starts with `heading`, without bold markup."""
    lines = (ROOT / "docs" / "backbones.md").read_text().replace("**", "").splitlines()
    body = lines[next(k for k, line in enumerate(lines) if line.startswith(heading)) + 2 :]
    end = next(k for k, line in enumerate(body) if not line.startswith("|"))
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in body[:end]]


def cells(runs: list[dict[str, Any]]) -> list[str]:
    """Class-IL, Task-IL and forgetting as the page shows them."""
    out = []
    for name in ("class_il", "task_il", "forgetting"):
        values = [run[name] for run in runs]
        spread = statistics.stdev(values)
        out.append(f"{statistics.mean(values):.1f}" + (f" ± {spread:.1f}" if spread > 1e-6 else ""))
    return out


def test_accuracies_with_few_images_are_those_of_the_record():
    accuracy = {(r["images per class"], r["method"], r["ridge"]): f"{r['accuracy']:.1f}" for r in latest("few")}
    expected = [
        [
            str(count),
            accuracy[count, "ncm", None],
            *(accuracy[count, method, ridge] for method in ("ridge", "ranpac") for ridge in RIDGES),
        ]
        for count in (20, 100, 200)
    ]
    assert rows("| images per class |") == expected


def test_accuracies_on_the_stream_are_those_of_the_records():
    shown = rows("| pixels | method |")
    assert {row[0] for row in shown} == {"128", "224"}
    for size, method, *values in shown:
        name = method.replace("`", "")
        for words, suffix in SUFFIXES.items():
            name = name.replace(words, suffix)
        found = latest("accuracy", f"--size {size} ", name)["rows"]
        assert values[:3] == cells(found[name]["test"]), (size, method)


def test_accuracies_with_the_last_layer_are_those_of_the_record():
    found = latest("accuracy", "--methods ncm,ridge,er,derpp,itl")["rows"]
    means = {name: f"{statistics.mean(run['class_il'] for run in row['test']):.1f}" for name, row in found.items()}
    text = " ".join((ROOT / "docs" / "backbones.md").read_text().split())
    stated = "`ridge` reaches {ridge}, `derpp` {derpp}, `er` {er} and `itl` {itl}".format(**means)
    assert stated in text


def test_seconds_of_lessons_and_of_the_stream_are_those_of_the_records():
    lesson, stream = latest("first-lesson"), latest("stream")
    names = ("first", "later", "later with cached features", "of these the lesson")
    expected = [f"{lesson[name]:.1f} s" for name in names]
    expected += [f"{latest('memory')['peak_bytes'] / 2**30:.1f} GiB", f"{stream['seconds']:.0f} s"]
    assert [row[1] for row in rows("| | measured |")] == expected


def test_lessons_are_those_of_the_record():
    found = latest("lessons")
    expected = []
    for name, joint in (
        ("backbone", "joint, backbone"),
        ("backbone, trained classifier", None),
        ("from scratch", "joint, from scratch"),
    ):
        seconds = found[name]["seconds"]
        own = [f"{value:.1f}" for value in found[name]["accuracy"]] + [f"{min(seconds):.0f} to {max(seconds):.0f}"]
        if joint is None:
            expected.append([*own, "", ""])
        else:
            expected.append([*own, f"{found[joint]['accuracy'][0]:.1f}", f"{found[joint]['seconds'][0]:.0f}"])
    assert [row[1:] for row in rows("| `itl learn` |")] == expected
