"""A step that is the same from task to task is made once: tangent learning's and the projection's."""

from __future__ import annotations

import gc
import pickle
import weakref
from typing import Any

import pytest
import torch

from itl import Learner
from itl.callbacks.base import Callback
from itl.errors import UserError
from support.tiny import Teller, differing, photograph, tiny_learner, tiny_stream

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
    learner = tiny_learner(case.partition(",")[0], **{"classes": 6, **CASES[case]})
    learner._stepper_cache = Forgetful() if forget else {}
    for task in tiny_stream(classes=6, tasks=3):
        learner.learn(task)
        learner._last_generalist = None if forget else learner._last_generalist
    return learner


@pytest.mark.parametrize("case", list(CASES))
def test_a_kept_step_trains_as_a_new_one_to_the_last_bit(case: str) -> None:
    assert differing(photograph(taught(case, forget=False)), photograph(taught(case, forget=True))) == set()


@pytest.mark.parametrize(("case", "kept"), [("itl", True), ("itl, growing", False)])
def test_a_step_is_kept_while_its_tensors_are(case: str, kept: bool) -> None:
    steppers: list[tuple[int, int]] = []

    def listen(event: str, learner: Learner, stage: str | None, epoch: int) -> None:
        if event == "on_task_end":
            assert set(learner._stepper_cache) == {"tangent", "projection"}
            held.append(learner._stepper_cache.copy())
            steppers.append((id(learner._stepper_cache["tangent"]), id(learner._stepper_cache["projection"])))

    held: list[Any] = []  # so that no two of them are at one place
    learner = tiny_learner("itl", callback=Teller(listen), **{"classes": 6, **CASES[case]})
    for task in tiny_stream(classes=6, tasks=3):
        learner.learn(task)
    assert len(set(steppers)) == (1 if kept else 3)


def changed(learner: Learner, section: str, **values: Any) -> None:
    """Other settings from here on."""
    part = getattr(learner.settings, section).model_copy(update=values)
    learner.settings = learner.settings.model_copy(update={section: part})


def test_a_step_whose_stage_fails_is_not_kept() -> None:
    learner = tiny_learner("itl", classes=6)
    first, second, _ = tiny_stream(classes=6, tasks=3)
    learner.learn(first)
    before = dict(learner._stepper_cache)
    changed(learner, "projection", lr=1e30)
    with pytest.raises(UserError, match="not finite"):
        learner.learn(second)
    assert learner._stepper_cache == {"tangent": before["tangent"]}


@pytest.mark.parametrize(
    ("section", "values"),
    [("tangent", {"layers": 3}), ("tangent", {"beta": 0.5}), ("projection", {"reduction": "sum", "lr": 1e-4})],
)
def test_no_step_of_other_settings_is_gone_on_with(section: str, values: dict[str, Any]) -> None:
    """It has them within it, on a GPU."""
    learner = tiny_learner("itl", classes=6)
    first, second, _ = tiny_stream(classes=6, tasks=3)
    learner.learn(first)
    before = dict(learner._stepper_cache)
    changed(learner, section, **values)
    learner.learn(second)
    assert {name for name in before if learner._stepper_cache[name] is before[name]} == {"tangent", "projection"} - {
        section
    }


class Looking(Callback):
    """Sees which images a projection goes over, and which of them are still there when the next task is trained."""

    def __init__(self) -> None:
        self.sources: list[weakref.ref[Any]] = []
        self.there: list[bool] = []

    def on_stage_start(self, learner: Learner, stage: Any) -> None:
        if stage.name == "projection":
            self.sources.append(weakref.ref(stage.planner.source))
        elif stage.name == "specialist" and self.sources:
            gc.collect()
            self.there.append(self.sources[-1]() is not None)


def test_what_rests_holds_nothing_of_its_task() -> None:
    """A task's images must not lie in a GPU's memory while the next one is trained."""
    look = Looking()
    learner = tiny_learner("itl", classes=6, callback=look, projection__over="task")
    for task in tiny_stream(classes=6, tasks=3):
        learner.learn(task)
    assert "projection" in learner._stepper_cache
    assert look.there == [False, False]


def test_a_learner_that_keeps_steps_can_be_pickled() -> None:
    learner = tiny_learner("itl", classes=6)
    first, second, _ = tiny_stream(classes=6, tasks=3)
    learner.learn(first)
    twin = pickle.loads(pickle.dumps(learner))
    learner.learn(second)
    twin.learn(second)
    assert differing(photograph(learner), photograph(twin)) == set()


def test_training_on_a_cpu_does_not_touch_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    def touched(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("CUDA was asked for")

    for name in ("stream", "current_stream", "current_device", "device", "Stream", "_lazy_init"):
        monkeypatch.setattr(torch.cuda, name, touched)
    learner = tiny_learner("itl", classes=6)
    for task in tiny_stream(classes=6, tasks=2):
        learner.learn(task)
    learner.evaluate(tiny_stream(classes=6, tasks=2))
