"""Whatever is wrong with a record, it is one line and never a traceback."""

from __future__ import annotations

import copy
import json
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

WRONG: tuple[Any, ...] = (..., None, -1.5, "x", [[1]], {"total": "x"})


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(page, "library", lambda: "")
    return fake_run(tmp_path / "run", tasks=2, classes=4, buffer=8, points=1, each=2, pictures=8)


def outcome(path: Path) -> str:
    """Make the report and the table: nothing, or the line that says what is wrong."""
    try:
        runs, _ = find_runs([path])
        page.page(report_data(runs))
        render.markdown(build(runs), with_seconds=True)
    except UserError as error:
        return str(error)
    return ""


def test_a_result_with_any_part_missing_or_wrong(small: Path) -> None:
    whole = RunFolder(small).read("result.json")
    assert outcome(small) == ""
    refused = set()
    for name in whole:
        for value in WRONG:
            damaged = copy.deepcopy(whole)
            damaged.pop(name) if value is ... else damaged.update({name: value})
            (small / "result.json").write_text(json.dumps(damaged))
            if line := outcome(small):
                assert "\n" not in line
                refused.add(name)
    assert {"format", "class_il", "class_il_matrix", "memory", "stages", "seconds", "hardware"} <= refused


def test_a_configuration_with_any_part_missing_or_wrong(small: Path) -> None:
    whole = RunFolder(small).read("config.json")
    for name in whole:
        for value in WRONG:
            damaged = copy.deepcopy(whole)
            damaged.pop(name) if value is ... else damaged.update({name: value})
            (small / "config.json").write_text(json.dumps(damaged))
            outcome(small)


def test_a_line_with_any_part_missing_or_wrong(small: Path) -> None:
    lines = (small / "metrics.jsonl").read_text().splitlines()
    whole = json.loads(lines[5])
    refused = set()
    for name in whole:
        for value in WRONG:
            damaged = copy.deepcopy(whole)
            damaged.pop(name) if value is ... else damaged.update({name: value})
            (small / "metrics.jsonl").write_text("\n".join([*lines[:5], json.dumps(damaged), *lines[6:]]) + "\n")
            if outcome(small):
                refused.add(name)
    assert {"kind", "task", "class_il", "class_il_tasks"} <= refused
    (small / "metrics.jsonl").write_text("")
    assert outcome(small) == ""


@pytest.mark.parametrize("name", ["predictions.npz", "pictures.npz"])
def test_arrays_that_are_cut_off_or_of_another_shape(small: Path, name: str) -> None:
    content = (small / name).read_bytes()
    (small / name).write_bytes(content[: len(content) // 2])
    assert f"{name} is damaged" in outcome(small)
    (small / name).write_bytes(content)
    arrays = RunFolder(small).read_arrays(name)
    assert arrays is not None
    for part in arrays:
        for wrong in (np.zeros((0,)), np.full((3, 2), 7.5), np.array(["a"]), np.full(len(arrays[part]), 9999)):
            RunFolder(small).write_arrays(name, **{**arrays, part: wrong})
            outcome(small)
        RunFolder(small).write_arrays(name, **{key: value for key, value in arrays.items() if key != part})
        outcome(small)
