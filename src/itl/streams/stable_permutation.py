"""Permutations that are identical across versions of NumPy and PyTorch.

A split that everyone shares must not depend on a library's random generator, because NumPy and PyTorch may change
theirs from one version to the next. Samples are therefore sorted by a hash of (key, index), SplitMix64. It is a
bijection of 64-bit integers, so there are no ties and every sorting algorithm gives the same order.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

# Keys are text read as a number, which shows that they were not tuned.
VALIDATION_KEY = int.from_bytes(b"validate", "big")
HELD_OUT_KEY = int.from_bytes(b"held-out", "big")
CLASS_ORDER_KEY = int.from_bytes(b"classes!", "big")

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = 2**64 - 1


def hash_permutation(count: int, key: int) -> Tensor:
    """The integers 0..count-1 sorted by their hashes under `key`, int64 `[count]`."""
    return torch.from_numpy(np.argsort(_hash(np.arange(count, dtype=np.uint64), key)).astype(np.int64))


def derive_key(key: int, seed: int) -> int:
    """A different key for every seed."""
    return int(_hash(np.array([seed & _MASK], dtype=np.uint64), key)[0])


def stratified_split(labels: Tensor, fraction: float) -> tuple[Tensor, Tensor]:
    """Hold out the same fraction of every class.

    Args:
        labels: int64 `[N]`.
        fraction: Fraction of each class to hold out: the first samples in hash order.

    Returns:
        Indices of the samples that are kept and of those held out, both ascending.
    """
    order = hash_permutation(len(labels), HELD_OUT_KEY)
    is_held_out = torch.zeros(len(labels), dtype=torch.bool)
    for label in torch.unique(labels):
        members = order[labels[order] == label]
        is_held_out[members[: round(len(members) * fraction)]] = True
    return (~is_held_out).nonzero().flatten(), is_held_out.nonzero().flatten()


def _hash(index: npt.NDArray[np.uint64], key: int) -> npt.NDArray[np.uint64]:
    """SplitMix64."""
    z = (index + np.uint64(1)) * np.uint64(_GOLDEN) + np.uint64(key & _MASK)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
