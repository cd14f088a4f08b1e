"""The tables of docs/backbones.md show what the records of benchmarks/backbones.py contain."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "benchmarks" / "results" / "backbones" / "measurements.jsonl"
RIDGES = (300, 1000, 3000, 10000)


def latest(part: str, words: str = "") -> dict[str, Any]:
    """Result of the last record of a part whose command contains `words`."""
    records = [json.loads(line) for line in RECORDS.read_text().splitlines()]
    complete = [record for record in records if record["part"] == part and not record.get("interrupted")]
    return [record["result"] for record in complete if words in record["command"]][-1]


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
    expected = []
    for size in (128, 224):
        found = latest("accuracy", f"--size {size} --methods ncm,ridge --set")["rows"]
        expected += [[str(size), f"`{method}`", *cells(found[method]["test"])] for method in ("ncm", "ridge")]
    assert [row[:5] for row in rows("| pixels | method |")] == expected


def test_accuracies_with_the_last_layer_are_those_of_the_record():
    found = latest("accuracy", "--methods ncm,ridge,er,derpp,itl")["rows"]
    expected = [[f"`{method}`", *cells(found[method]["test"])] for method in ("ncm", "ridge", "er", "derpp", "itl")]
    assert [row[:4] for row in rows("| method | Class-IL |")] == expected
