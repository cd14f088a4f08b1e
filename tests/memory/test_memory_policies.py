"""Tests of the stratified and reservoir policies, and of the plan of an epoch."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from itl.engine.keyed_random import generator
from itl.memory import Slots
from itl.memory.class_balance import class_quotas
from itl.memory.policies.reservoir import Reservoir, reservoir
from itl.memory.policies.stratified import Stratified
from itl.memory.slots import last_write_per_slot
from itl.replay.epoch_plan import plan_epoch
from support.uniformity import chi_square

# ---------------------------------------------------------------------- stratified


def taught(size: int, tasks: list[list[int]], key: str = "stream") -> list[Slots]:
    """Slots after each task; a task is the number of images of each of its new classes."""
    slots, first, out = Slots.empty(size), 0, []
    for number, counts in enumerate(tasks):
        labels = np.repeat(np.arange(first, first + len(counts)), counts)
        first += len(counts)
        labels = generator(key, number, "mix").permutation(labels)
        targets, rows = Stratified().select_at_task_end(slots, labels, generator(key, size, number))
        assert len(set(targets)) == len(targets)
        assert len(set(rows)) == len(rows)
        slots.write(targets, labels[rows], number, rows, first)
        out.append(slots.copy())
    return out


def held(slots: Slots) -> np.ndarray:
    return np.unique(slots.label[: slots.count], return_counts=True)[1]


@pytest.mark.parametrize("size", [10, 11, 20, 37, 50, 200])
@pytest.mark.parametrize("per_task", [1, 2, 3])
def test_stratified_balances_classes_to_within_one(size: int, per_task: int) -> None:
    tasks = [[90] * per_task for _ in range(9 // per_task)]
    for number, slots in enumerate(taught(size, tasks), 1):
        counts = held(slots)
        assert len(counts) == number * per_task
        assert counts.max() - counts.min() <= 1
        assert counts.sum() == slots.count == min(size, 90 * number * per_task)


def test_stratified_gives_unused_quota_to_other_classes() -> None:
    after = taught(30, [[100, 3], [100, 100], [2, 100]])
    assert [sorted(held(slots).tolist()) for slots in after] == [[3, 27], [3, 9, 9, 9], [2, 3, 6, 6, 6, 7]]


def test_stratified_memory_larger_than_the_data_holds_everything_once() -> None:
    slots = taught(100, [[5, 6], [7]])[-1]
    assert slots.count == 18
    assert len({(t, r) for t, r in zip(slots.task[:18], slots.row[:18], strict=True)}) == 18
    assert (slots.label[18:] == -1).all()


def test_stratified_never_exchanges_old_images() -> None:
    """An old class keeps a subset of its images; images of past tasks are never rewritten."""
    after = taught(20, [[50, 50], [50, 50], [50]])
    for before, now in pairwise(after):
        for label in before.classes():
            kept = {(t, r) for t, r, c in zip(now.task, now.row, now.label, strict=True) if c == label}
            had = {(t, r) for t, r, c in zip(before.task, before.row, before.label, strict=True) if c == label}
            assert kept <= had
        unmoved = (now.task == before.task) & (now.row == before.row)
        assert (now.written[unmoved] == before.written[unmoved]).all()


def test_stratified_keeps_every_image_of_a_class_with_equal_probability() -> None:
    counts = np.zeros(20)
    for run in range(1500):
        last = taught(12, [[20, 20], [20, 20]], key=f"run {run}")[-1]
        rows = last.row[:12][last.label[:12] == 0]
        labels = generator(f"run {run}", 0, "mix").permutation(np.repeat([0, 1], 20))
        rank = np.cumsum(labels == 0) - 1  # rank of each row among the images of class 0
        counts[rank[rows]] += 1
    assert abs(chi_square(counts)) < 4


def test_stratified_evicts_random_slots_of_old_classes() -> None:
    """Each of the six slots of an old class is among the three that it keeps with the same probability."""
    kept, runs = np.zeros(6), 600
    for run in range(runs):
        before, after = taught(12, [[20, 20], [20, 20]], key=f"evict {run}")
        slots = before.of_class(0)
        kept += after.label[slots] == 0
    assert kept.sum() == 3 * runs
    assert abs(chi_square(kept)) < 4


def test_class_quotas_draws_the_classes_that_get_the_remainder() -> None:
    extra = np.zeros(3)
    for run in range(600):
        extra += class_quotas(np.array([50, 50, 50]), 10, generator("remainder", run)) - 3
    assert extra.sum() == 600
    assert abs(chi_square(extra)) < 4


def test_stratified_mixes_old_and_new_images_of_a_repeated_class() -> None:
    slots = taught(20, [[50, 50]])[0]
    labels = np.repeat([1, 2], 50)
    targets, rows = Stratified().select_at_task_end(slots, labels, generator("again"))
    slots.write(targets, labels[rows], 1, rows, 3)
    assert sorted(held(slots).tolist()) == [6, 7, 7]
    assert set(slots.task[slots.label == 1]) <= {0, 1}
    assert (slots.task[slots.label == 0] == 0).all()


# ---------------------------------------------------------------------- reservoir


def test_reservoir_follows_the_textbook_algorithm() -> None:
    for seen, size, count in ((0, 5, 40), (3, 5, 10), (100, 7, 200), (0, 50, 20)):
        draws = generator("book", seen).random(count)
        slots = reservoir(seen, size, count, generator("book", seen))
        for k in range(count):
            n = seen + k  # number of samples before this one
            if n < size:
                assert slots[k] == n
            else:
                j = int(draws[k] * (n + 1))
                assert slots[k] == (j if j < size else size)


def test_reservoir_holds_every_sample_with_equal_probability() -> None:
    """By its position in the stream, over the plans of several epochs with uneven batches."""
    size, runs, counts = 5, 2000, np.zeros(24)
    for run in range(runs):
        slots, place, begun = Slots.empty(size), np.full(size, -1), 0
        for part, length in enumerate((9, 4, 11)):
            none = np.zeros(length, np.int64)
            options = {"width": 1, "batch": 4, "replay": 2, "draws": 0, "online": Reservoir().plan_writes}
            made = plan_epoch(slots, none, key=("uniform", run, part), task=part, **options)
            slots = made.after
            new = slots.task == part
            place[new] = begun + np.argsort(made.rows)[slots.row[new]]
            begun += length
        counts[place] += 1
    assert counts.sum() == runs * size
    assert abs(chi_square(counts)) < 4


def test_last_write_per_slot_keeps_only_the_last_write() -> None:
    assert last_write_per_slot(np.array([2, 9, 2, 0, 2, 0]), dummy=9).tolist() == [9, 9, 9, 9, 2, 0]
    rng = np.random.default_rng(0)
    for _ in range(50):
        targets = rng.integers(0, 6, 8)
        left, sequential, at_once = last_write_per_slot(targets, 5), np.full(5, -1), np.full(6, -1)
        for k, slot in enumerate(targets):
            if slot < 5:
                sequential[slot] = k
        real = left < 5
        assert len(set(left[real])) == real.sum()
        at_once[left] = np.arange(8)
        assert (at_once[:5] == sequential).all()


# ---------------------------------------------------------------------- the plan


def plan(slots: Slots, count: int = 52, **options: object):  # type: ignore[no-untyped-def]
    given = {
        "key": ("plan", 0),
        "task": 1,
        "width": 4,
        "batch": 8,
        "replay": 6,
        "draws": 2,
        "online": Reservoir().plan_writes,
    }
    return plan_epoch(slots, np.arange(count) % 4, **{**given, **options})


def test_plan_replays_each_filled_slot_at_most_once_per_batch() -> None:
    made = plan(Slots.empty(20))
    assert made.replay.tolist() == [0, 6, 6, 6, 6, 6, 6]
    for picks in made.slots:
        first = 0
        for k, count in enumerate(made.replay):
            here = picks[first : first + count]
            assert len(set(here)) == count
            assert (here < min(20, 8 * k)).all()
            first += count
    assert not np.array_equal(made.slots[0], made.slots[1])  # the two draws are independent


def test_plan_replays_all_of_a_small_memory() -> None:
    made = plan(Slots.empty(4))
    assert made.replay.tolist() == [0, 4, 4, 4, 4, 4, 4]
    assert sorted(made.slots[0][:4]) == [0, 1, 2, 3]


def test_plan_does_not_change_the_memory() -> None:
    slots = taught(10, [[30, 30]])[0]
    before = slots.copy()
    made = plan(slots)
    for name in ("label", "task", "row", "written", "width"):
        assert np.array_equal(getattr(slots, name), getattr(before, name))
    assert (slots.count, slots.seen, slots.step) == (before.count, before.seen, before.step)
    assert made.after.seen == 52
    assert made.after.step == 7


def test_plan_without_online_policy_writes_nothing() -> None:
    slots = taught(10, [[30, 30]])[0]
    made = plan(slots, online=None)
    assert (made.targets == 10).all()
    assert len(made.changed[0]) == 0
    assert np.array_equal(made.after.row, slots.row)
    assert made.after.seen == 0


def test_plan_records_the_step_of_every_write() -> None:
    made = plan(Slots.empty(20))
    position = {int(row): k for k, row in enumerate(made.rows)}
    for slot in range(made.after.count):
        assert made.after.written[slot] == position[int(made.after.row[slot])] // 8 + 1
