"""Tests of seq-digits."""

import pytest
import torch

from itl import streams
from itl.streams import digits


def test_digits_have_fixed_counts_and_scaled_values():
    stream = streams.load("seq-digits", root="no/such/folder")
    assert [len(task.train) for task in stream] == [270, 270, 272, 270, 265]
    assert [len(task.test) for task in stream] == [90, 90, 91, 90, 89]
    assert stream.shape == (1, 8, 8)
    assert (stream.flip, stream.padding, stream.policy) == (False, 1, None)
    values = torch.cat([task.train.pixels for task in stream]).unique().tolist()
    assert values == [round(k * 255 / 16) for k in range(17)]


def test_digits_mean_and_std_match_the_training_images():
    stream = streams.load("seq-digits")
    x = torch.cat([task.train.pixels for task in stream]).double() / 255
    assert abs(float(x.mean()) - stream.mean[0]) < 1e-4
    assert abs(float(x.std(unbiased=False)) - stream.std[0]) < 1e-4


def test_digits_split_is_stratified_and_fixed():
    stream = streams.load("seq-digits", tasks=1)
    train, test = stream.tasks[0].train, stream.tasks[0].test
    share = torch.bincount(test.labels) / (torch.bincount(train.labels) + torch.bincount(test.labels))
    assert bool(((share - 0.25).abs() < 0.01).all())
    assert not set(train.rows.tolist()) & set(test.rows.tolist())
    assert test.rows[:8].tolist() == [1, 7, 12, 17, 18, 23, 30, 33]


def test_digits_images_match_their_labels():
    from sklearn.datasets import load_digits

    given = load_digits()
    for task in streams.load("seq-digits"):
        assert task.train.labels.tolist() == given.target[task.train.rows.numpy()].tolist()
        back = task.train.pixels[:, 0].double() * 16 / 255
        assert torch.equal(back.round(), torch.from_numpy(given.images[task.train.rows.numpy()]))


def test_digits_do_not_depend_on_where_scikit_learn_stores_them(monkeypatch: pytest.MonkeyPatch) -> None:
    own = digits._levels_and_labels()
    monkeypatch.setattr(digits, "find_spec", lambda name: None)
    for mine, theirs in zip(own, digits._levels_and_labels(), strict=True):
        assert mine.dtype == theirs.dtype
        assert (mine == theirs).all()
