"""Reservoir sampling on every batch of every epoch (Vitter, 1985), planned ahead as index arrays."""

from __future__ import annotations

import numpy as np

from itl.memory.policies.base import MemoryPolicy
from itl.memory.slots import Slots


class Reservoir(MemoryPolicy):
    """Every sample seen so far is in memory with the same probability."""

    def plan_writes(self, slots: Slots, labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Reservoir sampling, whatever the labels are."""
        return reservoir(slots.seen, slots.size, len(labels), rng, filled=slots.count)


def reservoir(seen: int, size: int, count: int, rng: np.random.Generator, filled: int | None = None) -> np.ndarray:
    """Slot for each of the next `count` samples, int64 `[count]`; `size` for samples that are not written.

    The first samples fill the memory. After that, a sample with k samples before it draws an integer below k + 1 and is
    written if that is a slot.

    Args:
        seen: Number of samples offered before.
        size: Capacity of the memory.
        count: Number of samples offered now.
        rng: Generator of all draws.
        filled: Number of filled slots. Default: `seen`, at most `size`. It differs if the memory has grown, or has
            forgotten a class, since.
    """
    before = seen + np.arange(count)
    drawn = np.floor(rng.random(count) * (before + 1)).astype(np.int64)
    next_free = (min(seen, size) if filled is None else filled) + np.arange(count)
    target = np.where(next_free < size, next_free, drawn)
    return np.where(target < size, target, size)
