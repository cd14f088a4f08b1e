"""Keyed generators and sampling without replacement."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch

from itl.engine.keyed_random import generator, sample_without_replacement, torch_generator
from support.uniformity import chi_square


def test_same_key_gives_same_numbers_regardless_of_history() -> None:
    first = generator(3, 1, "specialist", 0, "order").random(5)
    generator(3, 1, "tangent").random(100)
    np.random.default_rng(0).random(7)
    assert np.array_equal(generator(3, 1, "specialist", 0, "order").random(5), first)
    assert torch.equal(
        torch.rand(4, generator=torch_generator(1, "a")), torch.rand(4, generator=torch_generator(1, "a"))
    )


def test_different_keys_give_different_numbers() -> None:
    keys = [
        (0,),
        (1,),
        ("0",),
        (0, 0),
        (0, 1),
        (1, 0),
        (0, "order"),
        (0, "views"),
        (0, 1, "a"),
        (0, "1", "a"),
        (0, "1/a"),
    ]
    keys += [(12, 3), (1, 23)]  # not merely concatenated
    numbers = {generator(*key).integers(2**62) for key in keys}
    assert len(numbers) == len(keys)
    drawn = {torch.randint(2**62, (1,), generator=torch_generator(*key)).item() for key in keys}
    assert len(drawn) == len(keys)


@pytest.mark.parametrize(
    ("size", "count"), [(1, 1), (5, 5), (8, 3), (40, 3), (1000, 32), (5120, 32), (130, 32), (3, 0)]
)
def test_sampling_without_replacement_has_no_duplicates(size: int, count: int) -> None:
    picks = sample_without_replacement(generator(size, count), 200, size, count)
    assert picks.shape == (200, count)
    assert picks.dtype == np.int64
    if count:
        assert picks.min() >= 0
        assert picks.max() < size
    assert all(len(set(row)) == count for row in picks.tolist())


@pytest.mark.parametrize("size", [4, 12], ids=["by shuffling", "by drawing again"])
def test_every_ordered_sample_is_equally_likely(size: int) -> None:
    count = 3
    picks = sample_without_replacement(generator("uniform", size), 40_000, size, count)
    codes = picks @ (size ** np.arange(count))
    possible = [int(np.dot(p, size ** np.arange(count))) for p in permutations(range(size), count)]
    counts = np.array([np.count_nonzero(codes == code) for code in possible])
    assert counts.sum() == len(picks)
    assert abs(chi_square(counts)) < 4


@pytest.mark.parametrize(("size", "count"), [(64, 32), (500, 32)])
def test_every_number_is_equally_likely_at_each_position(size: int, count: int) -> None:
    picks = sample_without_replacement(generator("places", size), 20_000, size, count)
    for place in (0, count // 2, count - 1):
        assert abs(chi_square(np.bincount(picks[:, place], minlength=size))) < 4.5


def test_sampling_more_than_available_is_rejected() -> None:
    with pytest.raises(ValueError, match="4 different numbers below 3"):
        sample_without_replacement(generator(0), 1, 3, 4)
