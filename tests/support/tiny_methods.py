"""The baselines with tiny settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from itl import Learner
from support.tiny import METHOD_SETTINGS, LambdaCallback, learner_snapshot, tiny_learner

BASELINES = ["joint", "agem", "der", "co2l", "er-ace", "x-der", "cls-er", "gdumb", "icarl", "lwf"]
BASELINE_SETTINGS: dict[str, dict[str, Any]] = {
    **METHOD_SETTINGS,
    "gdumb": {"specialist__epochs": 3},
    "cls-er": {"specialist__options__stable_rate": 0.7, "specialist__options__stable_alpha": 0.5},
}


def baseline_learner(method: str, **settings: Any) -> Learner:
    """A tiny learner with momentum in the specialist."""
    return tiny_learner(method, **{"specialist__momentum": 0.9, **BASELINE_SETTINGS.get(method, {}), **settings})


def full_snapshot(learner: Learner) -> dict[str, Tensor]:
    """A snapshot of the learner, including the state of its specialist."""
    return learner_snapshot(learner) | {f"own.{n}": t.clone() for n, t in learner.specialist.state_dict().items()}


def save_each_stage(folder: Path) -> LambdaCallback:
    """A callback that saves the learner after the first round of each stage of the second task, as `folder/STAGE`."""

    def save(event: str, learner: Learner, stage: str | None, epoch: int) -> None:
        if event == "on_round_end" and len(learner.tasks) == 2 and epoch == 1:
            learner.save(folder / str(stage))

    return LambdaCallback(save)
