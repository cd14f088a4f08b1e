"""Reservoir sampling on every batch of every epoch (Vitter, 1985), planned ahead as index arrays."""

from __future__ import annotations

import numpy as np

from itl.memory.slots import Slots


def reservoir(seen: int, size: int, count: int, rng: np.random.Generator, held: int | None = None) -> np.ndarray:
    """Where `count` samples offered one after another are written: slot `[count]`, or `size` (the dummy) for nowhere.

    The first samples fill the memory; after that the sample with `k` before it goes to a number drawn below `k + 1` if
    that is a slot, so that every sample seen is held with the same probability. `held` is how many slots are filled:
    `seen` until the memory is full, unless it has grown, or was made to forget, since.
    """
    before = seen + np.arange(count)
    drawn = np.floor(rng.random(count) * (before + 1)).astype(np.int64)
    place = (min(seen, size) if held is None else held) + np.arange(count)
    target = np.where(place < size, place, drawn)
    return np.where(target < size, target, size)


def last_wins(targets: np.ndarray, dummy: int) -> np.ndarray:
    """The same targets `[batch]` with all but the last write to each slot sent to the dummy.

    Writes of one batch happen at once on the device, where the order of writes to one address is undefined.
    """
    out = targets.copy()
    _, first_from_end = np.unique(out[::-1], return_index=True)
    last = np.zeros(len(out), bool)
    last[len(out) - 1 - first_from_end] = True
    out[~last] = dummy
    return out


def offered(slots: Slots, labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The reservoir as a memory's policy: where the samples of classes `labels` are written."""
    return reservoir(slots.seen, slots.size, len(labels), rng, held=slots.count)
