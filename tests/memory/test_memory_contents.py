"""Tests that the memory holds the raw images that its slots describe."""

from __future__ import annotations

import numpy as np
import pytest

from support.tiny import assert_slots_hold_their_images, tiny_learner, tiny_stream

METHODS = ["itl", "er", "derpp", "itl-l", "b+ff"]


@pytest.mark.parametrize(("method", "buffer"), [*((method, 7) for method in METHODS), ("itl", 16), ("derpp", 16)])
def test_slots_match_their_images_classes_and_tasks(method: str, buffer: int) -> None:
    stream = tiny_stream(classes=6, tasks=3, each=9)
    learner = tiny_learner(method, buffer=buffer, classes=6, tangent__steps=1, projection__steps=1)
    for number, task in enumerate(stream):
        learner.learn(task)
        slots = learner.memory.slots
        assert learner.memory.size == buffer
        assert learner.memory.pixels.shape == (buffer + 1, 1, 8, 8)
        assert slots.count == len(learner.memory) == buffer
        assert set(slots.task[: slots.count]) <= set(range(number + 1))
        assert_slots_hold_their_images(learner, stream)
        assert (slots.written[: slots.count] > 0).all()
        assert (slots.written[: slots.count] <= slots.step).all()
        assert slots.step == (number + 1) * 2 * 2  # 2 epochs of 2 steps a task, of 8 images and of 10


def test_stratified_memory_is_balanced_after_every_task() -> None:
    stream = tiny_stream(classes=6, tasks=3, each=9)
    learner = tiny_learner("b", buffer=10, classes=6)
    sizes = []
    for task in stream:
        learner.learn(task)
        sizes.append(sorted(np.bincount(learner.memory.labels).tolist()))
    assert sizes == [[5, 5], [2, 2, 3, 3], [1, 1, 2, 2, 2, 2]]


def test_offline_memory_is_written_at_the_ends_of_tasks() -> None:
    stream = tiny_stream(classes=6, tasks=3, each=9)
    learner = tiny_learner("b", buffer=12, classes=6)
    for task in stream:
        learner.learn(task)
    slots = learner.memory.slots
    assert slots.written.tolist() == ((slots.task + 1) * 4).tolist()


def test_reservoir_is_offered_every_image_of_every_epoch() -> None:
    learner = tiny_learner("er", buffer=8)
    learner.learn(tiny_stream().tasks[0])
    assert learner.memory.slots.seen == 2 * 20


def test_learner_without_memory_stores_nothing() -> None:
    learner = tiny_learner("sgd", buffer=8)
    learner.learn(tiny_stream().tasks[0])
    assert len(learner.memory) == learner.memory.size == 0


def test_stored_logits_have_the_width_of_the_network_at_that_time() -> None:
    stream = tiny_stream(classes=6, tasks=3)
    learner = tiny_learner("derpp", buffer=30, classes=None, specialist__epochs=1)
    for number, task in enumerate(stream, 1):
        learner.learn(task)
        slots, logits = learner.memory.slots, learner.memory.logits
        assert logits is not None
        assert logits.shape == (31, 2 * number)
        assert (slots.width[: slots.count] == 2 * (slots.task[: slots.count] + 1)).all()
        for slot in range(slots.count):
            assert (logits[slot, slots.width[slot] :] == 0).all()
            assert logits[slot, : slots.width[slot]].abs().sum() > 0
    assert learner.memory.has_partial_logits(6)
