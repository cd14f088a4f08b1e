"""Sharing a memory equally among classes: quotas, and merging a task's samples into the memory by class."""

from __future__ import annotations

import numpy as np

from itl.memory.slots import Slots


def class_quotas(available: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    """Number of slots for each class, int64 `[classes]`: equal to within one, at most `available` `[classes]` each.

    Slots that a small class cannot fill go to the other classes. The classes that receive the remainder of the division
    are drawn from `rng`.
    """
    quota = np.zeros(len(available), np.int64)
    while (free := size - quota.sum()) > 0 and (growing := np.flatnonzero(quota < available)).size:
        share = free // growing.size
        if share == 0:
            quota[rng.permutation(growing)[:free]] += 1
        else:
            quota[growing] = np.minimum(quota[growing] + share, available[growing])
    return quota


def merge_by_class(
    slots: Slots,
    labels: np.ndarray,
    rng: np.random.Generator,
    ranked: np.ndarray | None = None,
    evict_last: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Select a class-balanced memory from the stored images and a task's samples.

    Within a class, stored and new images compete on equal terms.

    Args:
        slots: Metadata of the memory before the task.
        labels: Labels of the task's samples, int64 `[n]`.
        rng: Generator of all draws.
        ranked: Rows of the task that may be taken, best first; the best of each class are taken. None: all rows may be
            taken, at random.
        evict_last: Evict the slots that a class filled last (its lowest ranked images) instead of random ones.

    Returns:
        The slots to overwrite `[k]` and the task's rows to write there `[k]`.
    """
    candidates = np.arange(len(labels)) if ranked is None else ranked
    classes = np.union1d(slots.classes(), np.unique(labels[candidates]))
    stored = [slots.of_class(c) for c in classes]
    offered = [candidates[labels[candidates] == c] for c in classes]
    quota = class_quotas(np.array([len(s) + len(o) for s, o in zip(stored, offered, strict=True)]), slots.size, rng)
    free = list(range(slots.count, slots.size))
    rows: list[int] = []
    for old, new, count in zip(stored, offered, quota, strict=True):
        picks = rng.permutation(len(old) + len(new))[:count]
        kept = picks[picks < len(old)]
        free += list(np.setdiff1d(old, old[: len(kept)] if evict_last else old[kept]))
        fresh = picks[picks >= len(old)] - len(old)
        rows += list(new[fresh] if ranked is None else new[: len(fresh)])
    return np.array(sorted(free)[: len(rows)], np.int64), np.array(rows, np.int64)
