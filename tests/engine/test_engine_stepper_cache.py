"""Steppers of tangent learning and projection are cached from task to task."""

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
from support.tiny import LambdaCallback, differing_keys, learner_snapshot, tiny_learner, tiny_stream

CASES: dict[str, dict[str, Any]] = {
    "itl": {},
    "itl, with momentum": {"tangent__momentum": 0.9, "projection__momentum": 0.9, "projection__lr": 0.01},
    "itl, the last layer": {"tangent__layers": 1},
    "itl-l": {},
    "itl, growing": {"classes": None},
}


class Forgetful(dict[str, Any]):
    """A cache that stores nothing."""

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
def test_cached_stepper_trains_bit_equal_to_a_new_one(case: str) -> None:
    assert (
        differing_keys(learner_snapshot(taught(case, forget=False)), learner_snapshot(taught(case, forget=True)))
        == set()
    )


@pytest.mark.parametrize(("case", "kept"), [("itl", True), ("itl, growing", False)])
def test_stepper_is_cached_as_long_as_its_tensors_stay(case: str, kept: bool) -> None:
    steppers: list[tuple[int, int]] = []

    def listen(event: str, learner: Learner, stage: str | None, epoch: int) -> None:
        if event == "on_task_end":
            assert set(learner._stepper_cache) == {"tangent", "projection"}
            held.append(learner._stepper_cache.copy())
            steppers.append((id(learner._stepper_cache["tangent"]), id(learner._stepper_cache["projection"])))

    held: list[Any] = []  # keeps the steppers alive, so that no two have the same id
    learner = tiny_learner("itl", callback=LambdaCallback(listen), **{"classes": 6, **CASES[case]})
    for task in tiny_stream(classes=6, tasks=3):
        learner.learn(task)
    assert len(set(steppers)) == (1 if kept else 3)


def change_settings(learner: Learner, section: str, **values: Any) -> None:
    """Change settings for the following tasks."""
    part = getattr(learner.settings, section).model_copy(update=values)
    learner.settings = learner.settings.model_copy(update={section: part})


def test_stepper_of_a_failed_stage_is_not_cached() -> None:
    learner = tiny_learner("itl", classes=6)
    first, second, _ = tiny_stream(classes=6, tasks=3)
    learner.learn(first)
    before = dict(learner._stepper_cache)
    change_settings(learner, "projection", lr=1e30)
    with pytest.raises(UserError, match="not finite"):
        learner.learn(second)
    assert learner._stepper_cache == {"tangent": before["tangent"]}


@pytest.mark.parametrize(
    ("section", "values"),
    [("tangent", {"layers": 3}), ("tangent", {"beta": 0.5}), ("projection", {"reduction": "sum", "lr": 1e-4})],
)
def test_stepper_is_not_reused_with_other_settings(section: str, values: dict[str, Any]) -> None:
    """A captured graph contains its settings as constants."""
    learner = tiny_learner("itl", classes=6)
    first, second, _ = tiny_stream(classes=6, tasks=3)
    learner.learn(first)
    before = dict(learner._stepper_cache)
    change_settings(learner, section, **values)
    learner.learn(second)
    assert {name for name in before if learner._stepper_cache[name] is before[name]} == {"tangent", "projection"} - {
        section
    }


class SourceTracker(Callback):
    """Tracks a projection's images and whether they are still alive during the next task."""

    def __init__(self) -> None:
        self.sources: list[weakref.ref[Any]] = []
        self.alive: list[bool] = []

    def on_stage_start(self, learner: Learner, stage: Any) -> None:
        if stage.name == "projection":
            self.sources.append(weakref.ref(stage.planner.source))
        elif stage.name == "specialist" and self.sources:
            gc.collect()
            self.alive.append(self.sources[-1]() is not None)


def test_cached_steppers_keep_no_task_data_alive() -> None:
    """A task's images must not occupy GPU memory while the next task is trained."""
    tracker = SourceTracker()
    learner = tiny_learner("itl", classes=6, callback=tracker, projection__over="task")
    for task in tiny_stream(classes=6, tasks=3):
        learner.learn(task)
    assert "projection" in learner._stepper_cache
    assert tracker.alive == [False, False]


def test_learner_with_cached_steppers_can_be_pickled() -> None:
    learner = tiny_learner("itl", classes=6)
    first, second, _ = tiny_stream(classes=6, tasks=3)
    learner.learn(first)
    restored = pickle.loads(pickle.dumps(learner))
    learner.learn(second)
    restored.learn(second)
    assert differing_keys(learner_snapshot(learner), learner_snapshot(restored)) == set()


def test_training_on_a_cpu_does_not_touch_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    def touched(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("CUDA was used")

    for name in ("stream", "current_stream", "current_device", "device", "Stream", "_lazy_init"):
        monkeypatch.setattr(torch.cuda, name, touched)
    learner = tiny_learner("itl", classes=6)
    for task in tiny_stream(classes=6, tasks=2):
        learner.learn(task)
    learner.evaluate(tiny_stream(classes=6, tasks=2))
