"""The figures in the documents are those of the raw records in the repository."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from itl.experiments.config import Config

HOME = Path(__file__).parents[2]
DIGITS = runpy.run_path(str(HOME / "benchmarks" / "digits.py"))
RECORDS = sorted((HOME / "results").glob("**/result.json"))


def of(split: str) -> dict[tuple[str, str | None], list[dict[str, Any]]]:
    found: dict[tuple[str, str | None], list[dict[str, Any]]] = DIGITS["results"](split)
    return found


def test_the_tables_are_made_from_the_records() -> None:
    assert DIGITS["table"]() in (HOME / "README.md").read_text()
    assert DIGITS["validation_table"]() in (HOME / "docs" / "digits.md").read_text()


def test_over_five_seeds_itl_is_above_er_and_er_above_sgd() -> None:
    found = of("test")
    assert {len(runs) for runs in found.values()} == {5}
    itl, er, sgd = (mean(r["class_il"] for r in found[method, None]) for method in ("itl", "er", "sgd"))
    assert itl > er > sgd


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.parent.name)
def test_a_record_says_how_to_repeat_it_and_agrees_with_itself(path: Path) -> None:
    result = json.loads(path.read_text())
    config = Config.of(json.loads((path.parent / "config.json").read_text()))
    known = result["command"]
    assert config.command in (known, f"{known} --curves 16")  # so many was once the default, and went without saying
    assert (result["method"], result["seed"], result["split"]) == (config.method, config.seed, config.split)
    last = result["class_il_matrix"][-1]
    assert result["class_il"] == pytest.approx(mean(last))
    assert (path.parent / "metrics.jsonl").exists()
    assert (path.parent / "predictions.npz").exists()
