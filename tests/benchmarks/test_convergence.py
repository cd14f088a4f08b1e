"""`benchmarks/convergence.py`: twice the budget, and what the tables state."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from itl.experiments.config import Config
from itl.experiments.refine import check_settings

NAMES = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "convergence.py"))


def test_budget_is_doubled_for_both_solvers() -> None:
    solved = Config("seq-cifar10", "itl", 200)
    by_sgd = Config("seq-cifar10", "itl", 200, settings={"tangent.solver": "sgd", "tangent.epochs": 30})
    more = NAMES["doubled"](solved)
    assert more == {"tangent.iterations": 200, "tangent.tolerance": pytest.approx(3e-5)}
    assert NAMES["doubled"](by_sgd) == {"tangent.epochs": 60}
    check_settings(more)


def scores(tangent: float, expert: float) -> dict[str, Any]:
    return {"specialist": {"class_il": 0.0}, "tangent": {"class_il": tangent}, "expert": {"class_il": expert}}


def test_tables_have_the_means_of_the_seeds() -> None:
    records = [
        {
            "cell": "itl:200",
            "seed": seed,
            "stages": [scores(90.0 + seed, 91.0)] * 5,
            "doubled": {str(task): {"stages": scores(90.0 + 3 * seed, 90.5)} for task in (1, 3, 5)},
        }
        for seed in range(3)
    ]
    text = NAMES["report"](records)
    assert "| `itl:200`, tangent | 3 | +2.00 | +2.00 | +2.00 | +2.00 |" in text
    assert "| `itl:200`, expert | 3 | -0.50 | -0.50 | -0.50 | -0.50 |" in text
    assert "| `itl:200` | +0.00 | +0.00 | +0.00 | +0.00 | +0.00 |" in text
