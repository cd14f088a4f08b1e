"""The baselines in the tiny world."""

from __future__ import annotations

from typing import Any

from itl import Learner
from tiny_world import BRIEF, tiny_learner

BASELINES = ["joint", "agem", "der", "co2l", "er-ace", "x-der", "cls-er", "gdumb", "icarl", "lwf"]
SMALL: dict[str, dict[str, Any]] = {
    **BRIEF,
    "gdumb": {"specialist__epochs": 3},
    "cls-er": {"specialist__options__stable_rate": 0.7, "specialist__options__stable_alpha": 0.5},
}


def learner_of(method: str, **settings: Any) -> Learner:
    return tiny_learner(method, **{"specialist__momentum": 0.9, **SMALL.get(method, {}), **settings})
