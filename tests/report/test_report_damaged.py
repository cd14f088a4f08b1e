"""Damaged records are reported in one line (a `UserError`), never by another exception."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from itl import UserError
from itl.report import page
from itl.report.run_selection import report_data
from itl.results import RunFolder, render
from itl.results.runs import find_runs
from itl.results.table import build
from support.run_records import fake_run

WRONG_VALUES: tuple[Any, ...] = (  # ... removes the field
    ...,
    None,
    -1.5,
    "x",
    [[1]],
    {"total": "x"},
)


@pytest.fixture
def run_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small run; pages are made without the charting library."""
    monkeypatch.setattr(page, "LIBRARY", "page.html")
    return fake_run(tmp_path / "run", tasks=2, classes=4, buffer=8, points=1, each=2, pictures=8)


def error_message(path: Path) -> str:
    """Make the report and the table; returns the error message, or an empty string if there is none."""
    try:
        runs, _ = find_runs([path])
        page.page(report_data(runs))
        render.markdown(build(runs), with_seconds=True)
    except UserError as error:
        return str(error)
    return ""


def damaged_copies(intact: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Copies of a record in which one field is missing or wrong, each with the field's name."""
    for name in intact:
        for value in WRONG_VALUES:
            damaged = copy.deepcopy(intact)
            damaged.pop(name) if value is ... else damaged.update({name: value})
            yield name, damaged


def test_result_with_a_missing_or_wrong_field_gives_at_most_one_line(run_path: Path) -> None:
    intact = RunFolder(run_path).read("result.json")
    assert error_message(run_path) == ""
    refused = set()
    for name, damaged in damaged_copies(intact):
        (run_path / "result.json").write_text(json.dumps(damaged))
        if line := error_message(run_path):
            assert "\n" not in line
            refused.add(name)
    assert {"format", "class_il", "class_il_matrix", "memory", "stages", "seconds", "hardware"} <= refused


def test_configuration_with_a_missing_or_wrong_field_never_fails_otherwise(run_path: Path) -> None:
    intact = RunFolder(run_path).read("config.json")
    for _, damaged in damaged_copies(intact):
        (run_path / "config.json").write_text(json.dumps(damaged))
        error_message(run_path)


def test_metrics_line_with_a_missing_or_wrong_field_is_refused(run_path: Path) -> None:
    lines = (run_path / "metrics.jsonl").read_text().splitlines()
    intact = json.loads(lines[5])
    refused = set()
    for name, damaged in damaged_copies(intact):
        (run_path / "metrics.jsonl").write_text("\n".join([*lines[:5], json.dumps(damaged), *lines[6:]]) + "\n")
        if error_message(run_path):
            refused.add(name)
    assert {"kind", "task", "class_il", "class_il_tasks"} <= refused
    (run_path / "metrics.jsonl").write_text("")
    assert error_message(run_path) == ""


@pytest.mark.parametrize("name", ["predictions.npz", "pictures.npz"])
def test_truncated_or_misshapen_arrays_are_reported(run_path: Path, name: str) -> None:
    content = (run_path / name).read_bytes()
    (run_path / name).write_bytes(content[: len(content) // 2])
    assert f"{name} is damaged" in error_message(run_path)
    (run_path / name).write_bytes(content)
    arrays = RunFolder(run_path).read_arrays(name)
    assert arrays is not None
    for part in arrays:
        for wrong in (np.zeros((0,)), np.full((3, 2), 7.5), np.array(["a"]), np.full(len(arrays[part]), 9999)):
            RunFolder(run_path).write_arrays(name, **{**arrays, part: wrong})
            error_message(run_path)
        RunFolder(run_path).write_arrays(name, **{key: value for key, value in arrays.items() if key != part})
        error_message(run_path)
