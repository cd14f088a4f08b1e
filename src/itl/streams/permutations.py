"""Permutations that stay the same for ever.

A split that everyone shares must not depend on a library's random generator: NumPy and PyTorch both reserve the right
to change theirs from one version to the next. So samples are sorted by a hash of (key, index) written out here:
SplitMix64, 64-bit integer arithmetic that wraps and a bijection, so no two samples tie and any sort gives one order.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

# The keys are plain text read as a number, so that nobody need wonder how they were chosen.
VALIDATION = int.from_bytes(b"validate", "big")
HELD_OUT = int.from_bytes(b"held-out", "big")
CLASS_ORDER = int.from_bytes(b"classes!", "big")

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = 2**64 - 1


def permutation(count: int, key: int) -> Tensor:
    """The numbers 0..count-1 in the order of their hashes under `key`: int64 [count]."""
    return torch.from_numpy(np.argsort(_hash(np.arange(count, dtype=np.uint64), key)).astype(np.int64))


def seeded(key: int, seed: int) -> int:
    """A key of its own for every seed."""
    return int(_hash(np.array([seed & _MASK], dtype=np.uint64), key)[0])


def held_out(labels: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Cut samples in two, the same share of every class: (kept, held out), ascending indices.

    labels: int64 [N]. The held-out part of a class is the first `share` of it in hash order.
    """
    order = permutation(len(labels), HELD_OUT)
    out = torch.zeros(len(labels), dtype=torch.bool)
    for label in torch.unique(labels):
        members = order[labels[order] == label]
        out[members[: round(len(members) * share)]] = True
    return (~out).nonzero().flatten(), out.nonzero().flatten()


def _hash(index: npt.NDArray[np.uint64], key: int) -> npt.NDArray[np.uint64]:
    z = (index + np.uint64(1)) * np.uint64(_GOLDEN) + np.uint64(key & _MASK)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
