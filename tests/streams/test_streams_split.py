"""Tests of class order, tasks and validation split."""

import pytest
import torch

from itl import streams
from itl.errors import UserError
from itl.streams.base import Images
from itl.streams.split import build, task_sizes, validation_split
from itl.streams.stable_permutation import HELD_OUT_KEY, VALIDATION_KEY, derive_key, hash_permutation, stratified_split


def splitmix64(index: int, key: int) -> int:
    """Reference implementation with Python integers."""
    mask = 2**64 - 1
    z = ((index + 1) * 0x9E3779B97F4A7C15 + key) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


def stream_of(classes: int = 6, each: int = 20, **options):
    labels = torch.arange(classes).repeat(each)
    x = labels.to(torch.uint8)[:, None, None].expand(-1, 4, 4)
    return streams.from_arrays(x, labels, x, labels, **options)


def test_hash_permutation_sorts_by_splitmix64_and_never_changes():
    expected = sorted(range(300), key=lambda i: splitmix64(i, VALIDATION_KEY))
    assert hash_permutation(300, VALIDATION_KEY).tolist() == expected
    assert hash_permutation(50_000, VALIDATION_KEY)[:8].tolist() == [
        2808,
        20930,
        30717,
        7430,
        43031,
        28254,
        46851,
        21235,
    ]
    assert sorted(hash_permutation(1000, HELD_OUT_KEY).tolist()) == list(range(1000))


def test_reference_hash_is_the_published_splitmix64():
    # First outputs of the public reference generator for seed 1234567.
    assert [splitmix64(i, 1234567) for i in range(3)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]


def test_validation_split_removes_a_tenth_of_the_training_set():
    train = Images(torch.zeros(1005, 1, 2, 2, dtype=torch.uint8), torch.arange(1005))
    kept, held = validation_split(train)
    assert len(held) == 100
    assert sorted(kept.labels.tolist() + held.labels.tolist()) == list(range(1005))
    assert kept.labels.tolist() == sorted(kept.labels.tolist())
    assert held.labels.tolist() == sorted(held.labels.tolist())


def test_validation_split_is_independent_of_class_order_and_tasks():
    taken = []
    for options in ({}, {"order_seed": 3}, {"tasks": 2}, {"order": [3, 1, 4, 0, 5, 2, 6, 9, 8, 7]}):
        stream = streams.load("seq-digits", split="validation", **options)
        assert stream.split == "validation"
        taken.append(sorted(row for task in stream for row in task.test.rows.tolist()))
    assert len(taken[0]) == 134
    assert all(rows == taken[0] for rows in taken)


def test_validation_split_is_disjoint_from_training_and_test_rows():
    full, held = streams.load("seq-digits"), streams.load("seq-digits", split="validation")
    rows = {
        part: {row for task in stream for row in getattr(task, attribute).rows.tolist()}
        for part, stream, attribute in (
            ("train", held, "train"),
            ("validation", held, "test"),
            ("test", full, "test"),
            ("all", full, "train"),
        )
    }
    assert not rows["train"] & rows["validation"]
    assert not rows["validation"] & rows["test"]
    assert rows["train"] | rows["validation"] == rows["all"]


def test_labels_are_columns_in_class_order():
    stream = streams.load("seq-digits", order=[7, 3, 1, 0, 2, 4, 5, 6, 9, 8])
    assert stream.class_names == tuple("7310245698")
    assert [task.classes for task in stream] == [(0, 1), (2, 3), (4, 5), (6, 7), (8, 9)]
    plain = streams.load("seq-digits", tasks=1)
    original = dict(zip(plain.tasks[0].train.rows.tolist(), plain.tasks[0].train.labels.tolist(), strict=True))
    for task in stream:
        assert set(task.train.labels.tolist()) == set(task.test.labels.tolist()) == set(task.classes)
        for row, column in zip(task.train.rows.tolist(), task.train.labels.tolist(), strict=True):
            assert stream.class_names[column] == str(original[row])


def test_tasks_are_disjoint_complete_and_in_original_order():
    stream = streams.load("seq-digits", order_seed=5)
    rows = [row for task in stream for row in task.train.rows.tolist()]
    assert len(rows) == len(set(rows)) == 1347
    for task in stream:
        assert task.train.rows.tolist() == sorted(task.train.rows.tolist())


def test_order_seed_always_draws_the_same_order():
    assert hash_permutation(10, derive_key(int.from_bytes(b"classes!", "big"), 0)).tolist() == [
        3,
        0,
        8,
        6,
        4,
        7,
        1,
        5,
        9,
        2,
    ]
    assert streams.load("seq-digits", order_seed=0).class_names == tuple("3086471592")
    assert streams.load("seq-digits", order_seed=1).class_names != tuple("3086471592")


def test_task_sizes_differ_by_at_most_one():
    assert task_sizes(10, 4) == [3, 3, 2, 2]
    assert task_sizes(10, 3) == [4, 3, 3]
    assert task_sizes(7, 7) == [1] * 7
    assert [task.classes for task in streams.load("seq-digits", tasks=3)] == [(0, 1, 2, 3), (4, 5, 6), (7, 8, 9)]


def test_stratified_split_takes_the_same_fraction_of_every_class():
    labels = torch.tensor([0] * 40 + [1] * 8)
    kept, out = stratified_split(labels, 0.25)
    assert torch.bincount(labels[out]).tolist() == [10, 2]
    assert sorted(kept.tolist() + out.tolist()) == list(range(48))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tasks": 0}, "1 or more"),
        ({"tasks": 11}, "10 tasks or fewer"),
        ({"order": [0, 1]}, "exactly once"),
        ({"order": [0, 0, 1, 2, 3, 4, 5, 6, 7, 8]}, "exactly once"),
        ({"order": list("abcdefghij")}, "class numbers"),
        ({"order": list(range(10)), "order_seed": 1}, "not both"),
        ({"split": "valid"}, "Did you mean 'validation"),
    ],
)
def test_load_rejects_wrong_options_before_reading_files(options, message):
    with pytest.raises(UserError, match=message) as caught:
        streams.load("seq-cifar10", "no/such/folder", **options)
    assert "\n" not in str(caught.value)


def test_task_without_images_is_rejected():
    x = torch.zeros(4, 1, 4, 4, dtype=torch.uint8)
    with pytest.raises(UserError, match="task 2 would have no test images"):
        streams.from_arrays(x, [0, 0, 1, 1], x, [0, 0, 0, 0], tasks=2)


def test_labels_beyond_the_class_names_are_rejected():
    data = stream_of()
    images = data.tasks[0].train
    traits = streams.Traits((0.5,), (0.5,), True, 4, None, 1)
    with pytest.raises(UserError, match=r"0\.\.2"):
        build("x", streams.Dataset(images, images, ("a", "b", "c"), traits))
