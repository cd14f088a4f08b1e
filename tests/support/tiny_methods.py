"""The baselines in the tiny world."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from itl import Learner
from support.tiny import BRIEF, Teller, photograph, tiny_learner

BASELINES = ["joint", "agem", "der", "co2l", "er-ace", "x-der", "cls-er", "gdumb", "icarl", "lwf"]
SMALL: dict[str, dict[str, Any]] = {
    **BRIEF,
    "gdumb": {"specialist__epochs": 3},
    "cls-er": {"specialist__options__stable_rate": 0.7, "specialist__options__stable_alpha": 0.5},
}


def learner_of(method: str, **settings: Any) -> Learner:
    return tiny_learner(method, **{"specialist__momentum": 0.9, **SMALL.get(method, {}), **settings})


def whole(learner: Learner) -> dict[str, Tensor]:
    """Everything the learner's future depends on, the method's own state included."""
    return photograph(learner) | {f"own.{n}": t.clone() for n, t in learner.specialist.state_dict().items()}


def keeping(folder: Path) -> Teller:
    """Saves a learner after the first round of every stage of its second task, in a folder by the stage's name."""

    def keep(event: str, learner: Learner, stage: str | None, done: int) -> None:
        if event == "on_round_end" and len(learner.tasks) == 2 and done == 1:
            learner.save(folder / str(stage))

    return Teller(keep)
