"""Tasks with known classes, and memories that are too small for their classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import itl
from itl import Learner, UserError, presets
from itl.engine.keyed_random import generator
from itl.memory import Slots
from itl.memory.policies.reservoir import Reservoir, reservoir
from itl.replay.epoch_plan import plan_epoch
from support.tiny import LambdaCallback, differing_keys, images_of, learner_snapshot, tiny_learner

NEEDS_NEW_CLASSES = {"co2l", "icarl", "lwf"}  # their papers define them for tasks of new classes only
NEEDS_FIXED_CLASSES = {"x-der"}  # it needs the number of classes from the start
METHODS = sorted(set(presets.METHODS) - NEEDS_NEW_CLASSES - NEEDS_FIXED_CLASSES)
SHORT = {"tangent__steps": 1, "projection__steps": 1}


@pytest.mark.parametrize("method", sorted(NEEDS_NEW_CLASSES - {"co2l"}))  # co2l trains its classifier for minutes
def test_method_for_new_classes_refuses_known_ones(method: str) -> None:
    learner = tiny_learner(method, buffer=12, classes=None)
    learner.learn(*images_of([0, 1]))
    with pytest.raises(UserError, match="needs tasks of new classes, and class 1 was learned before"):
        learner.learn(*images_of([1, 2]))


@pytest.mark.parametrize("method", METHODS)
def test_task_can_have_known_and_new_classes(method: str) -> None:
    learner = tiny_learner(method, buffer=12, classes=None, specialist__steps=2, **SHORT)
    for classes in ([0, 1], [1], [0, 2, 3]):
        learner.learn(*images_of(classes, seed=len(learner.tasks)))
    assert learner.tasks == [(0, 1), (1,), (0, 2, 3)]
    assert learner.net.classifier.out_features == 4
    if learner.memory.size:
        assert len(learner.memory) == 12
        assert set(learner.memory.labels) <= {0, 1, 2, 3}


def test_new_images_of_a_known_class_are_stored_as_likely_as_old_ones() -> None:
    old = 0
    for seed in range(40):
        learner = tiny_learner("b", buffer=4, classes=None, seed=seed, specialist__steps=1)
        learner.learn(*images_of([0], each=10))
        learner.learn(*images_of([0], each=30, seed=1))
        assert len(learner.memory) == 4
        old += int((learner.memory.slots.task == 0).sum())
    # The 4 stored images compete with 30 new ones, so 4/34 of all slots should be old: about 19 of 4 x 40.
    assert 8 <= old <= 32


@pytest.mark.parametrize("method", sorted(set(METHODS) - {"sgd", "joint", "ncm", "ridge", "ranpac", "tangent-ridge"}))
def test_memory_grows_with_the_classes_if_allowed(method: str, tmp_path: Path) -> None:
    learner = tiny_learner(
        method, buffer=4, classes=None, memory__outgrown="grow", memory__least=3, specialist__steps=4, **SHORT
    )
    sizes = []
    for classes in ([0], [1, 2], [0, 3, 4]):
        learner.learn(*images_of(classes))
        sizes.append((learner.memory.size, learner.buffer))
        assert (learner.memory.labels >= 0).all()  # no empty slot is replayed
        assert len(learner.memory) == learner.memory.size
    assert sizes == [(4, 4), (9, 9), (15, 15)]
    learner.save(tmp_path)
    assert not differing_keys(learner_snapshot(learner), learner_snapshot(itl.load(tmp_path, device="cpu")))


@pytest.mark.parametrize("method", ["itl", "itl-l"])
def test_learner_resumes_exactly_after_its_memory_has_grown(method: str, tmp_path: Path) -> None:
    def save_in_second_task(event: str, learner: Learner, stage: str | None, epoch: int) -> None:
        if event == "on_round_end" and (stage, epoch) == ("specialist", 1) and len(learner.tasks) == 2:
            learner.save(tmp_path)

    learner = tiny_learner(
        method, 2, None, callback=LambdaCallback(save_in_second_task), memory__outgrown="grow", memory__least=2
    )
    for classes in ([0, 1], [2, 3]):
        learner.learn(*images_of(classes))
    again = itl.load(tmp_path, device="cpu")
    again.learn(*images_of([2, 3]))
    assert not differing_keys(learner_snapshot(learner), learner_snapshot(again))


def test_shrunk_memory_keeps_the_scores_of_its_policy() -> None:
    learner = tiny_learner("er", buffer=8, classes=None, memory__policy="loss-aware")
    learner.learn(*images_of([0, 1]))
    memory = learner.memory
    assert memory.scores is not None
    scores = memory.scores[:8].clone()
    memory.keep(np.array([1, 3, 6]), 5)
    assert memory.scores.shape == (6,)
    assert memory.scores[:3].tolist() == scores[[1, 3, 6]].tolist()
    learner.learn(*images_of([2]))
    assert len(memory) == 5


def test_memory_of_fixed_size_drops_classes_or_refuses_them() -> None:
    learner = tiny_learner("itl", buffer=3, classes=None, memory__outgrown="drop")
    learner.learn(*images_of([0, 1]))
    learner.learn(*images_of([2, 3, 4]))
    assert len(set(learner.memory.labels)) == len(learner.memory) == learner.memory.size == 3
    learner = tiny_learner("itl", buffer=7, classes=None, memory__least=2)
    learner.learn(*images_of([0, 1]))
    with pytest.raises(UserError, match="a buffer of 7 cannot hold 2 images of each of 5 classes; use --buffer 10"):
        learner.learn(*images_of([2, 3, 4]))
    learner = tiny_learner("itl", buffer=0, classes=None, memory__outgrown="drop")
    with pytest.raises(UserError, match=r"a buffer of 0 cannot hold any images; use --buffer 1 or more"):
        learner.learn(*images_of([0, 1]))


def test_grown_reservoir_fills_its_free_slots_first() -> None:
    slots_chosen = reservoir(1000, 12, 20, generator("grown"), filled=10)
    assert slots_chosen[:2].tolist() == [10, 11]
    slots = Slots.empty(10)
    slots.write(np.arange(10), np.zeros(10, np.int64), 0, np.arange(10), 1)
    slots.seen = 1000
    plan = plan_epoch(
        slots.grown(16),
        np.ones(8, np.int64),
        key=("grown",),
        task=1,
        width=2,
        batch=2,
        replay=16,
        draws=1,
        online=Reservoir().plan_writes,
    )
    assert plan.replay.tolist() == [10, 12, 14, 16]
    assert set(plan.labels[0]) == {0, 1}
    assert (plan.after.count, plan.after.seen) == (16, 1008)
