"""A step that is the same from task to task is made once: tangent learning's and the projection's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from itl import Learner
from itl.errors import UserError
from tiny_world import Teller, differing, photograph, tiny_learner, tiny_stream

CASES: dict[str, dict[str, Any]] = {
    "itl": {},
    "itl, with momentum": {"tangent__momentum": 0.9, "projection__momentum": 0.9, "projection__lr": 0.01},
    "itl, the last layer": {"tangent__layers": 1},
    "itl-l": {},
    "itl, growing": {"classes": None},
}


class Forgetful(dict[str, Any]):
    """Keeps nothing."""

    def __setitem__(self, key: str, value: Any) -> None:
        pass


def taught(case: str, forget: bool) -> Learner:
    stream = tiny_stream(classes=6, tasks=3)
    learner = tiny_learner(case.partition(",")[0], **{"classes": 6, **CASES[case]})
    for task in stream:
        learner.prepare(task)
        if forget:
            learner.engine = replace(learner.engine, kept=Forgetful())
        learner.learn(task)
    return learner


@pytest.mark.parametrize("case", list(CASES))
def test_a_kept_step_trains_as_a_new_one_to_the_last_bit(case: str) -> None:
    assert differing(photograph(taught(case, forget=False)), photograph(taught(case, forget=True))) == set()


@pytest.mark.parametrize(("case", "kept"), [("itl", True), ("itl, growing", False)])
def test_a_step_is_kept_while_its_tensors_are(case: str, kept: bool) -> None:
    steppers: list[tuple[int, int]] = []

    def listen(event: str, learner: Learner, stage: str | None, epoch: int) -> None:
        if event == "task_ends":
            assert set(learner.engine.kept) == {"tangent", "projection"}
            held.append(learner.engine.kept.copy())
            steppers.append((id(learner.engine.kept["tangent"]), id(learner.engine.kept["projection"])))

    held: list[Any] = []  # so that no two of them are at one place
    learner = tiny_learner("itl", observer=Teller(listen), **{"classes": 6, **CASES[case]})
    for task in tiny_stream(classes=6, tasks=3):
        learner.learn(task)
    assert len(set(steppers)) == (1 if kept else 3)


def test_a_step_whose_stage_fails_is_not_kept() -> None:
    learner = tiny_learner("itl", classes=6)
    first, second, _ = tiny_stream(classes=6, tasks=3)
    learner.learn(first)
    before = dict(learner.engine.kept)
    learner.settings = learner.settings.model_copy(
        update={"projection": learner.settings.projection.model_copy(update={"lr": 1e30})}
    )
    with pytest.raises(UserError, match="not finite"):
        learner.learn(second)
    assert learner.engine.kept == {"tangent": before["tangent"]}
