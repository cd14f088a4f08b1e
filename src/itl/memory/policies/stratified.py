"""Stratified random sampling at the task's end: every class holds the same number of slots to within one (ITL)."""

from __future__ import annotations

import numpy as np

from itl.memory.slots import Slots


def quotas(available: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    """How many of `size` slots each class gets: equal to within one, never more than it has available.

    What a small class cannot fill goes to the others; who gets the remainder of the division is drawn.
    """
    quota = np.zeros(len(available), np.int64)
    while (room := size - quota.sum()) > 0 and (open_ := np.flatnonzero(quota < available)).size:
        share = room // open_.size
        if share == 0:
            quota[rng.permutation(open_)[:room]] += 1
        else:
            quota[open_] = np.minimum(quota[open_] + share, available[open_])
    return quota


def stratified(slots: Slots, labels: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Choose B_t from B_{t-1} and the task's samples: returns (slots to overwrite, the task's rows put there).

    `labels` `[n]` are the task's. Old classes give up random slots; those and the free ones take random samples of the
    task's classes. A class that the memory already holds competes with its new samples on equal terms.
    """
    return merge(slots, labels, rng)


def merge(
    slots: Slots,
    labels: np.ndarray,
    rng: np.random.Generator,
    ranked: np.ndarray | None = None,
    last_first: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """The same, taking of the task only the rows `ranked`, where given, and of those the first ones of each class.

    `last_first`: a class gives up the slots it filled last, which hold what it ranked lowest, instead of random ones.
    """
    offer = np.arange(len(labels)) if ranked is None else ranked
    classes = np.union1d(slots.classes(), np.unique(labels[offer]))
    held = [slots.of_class(c) for c in classes]
    offered = [offer[labels[offer] == c] for c in classes]
    quota = quotas(np.array([len(h) + len(o) for h, o in zip(held, offered, strict=True)]), slots.size, rng)
    free = list(range(slots.count, slots.size))
    rows: list[int] = []
    for old, new, count in zip(held, offered, quota, strict=True):
        picks = rng.permutation(len(old) + len(new))[:count]
        kept = picks[picks < len(old)]
        free += list(np.setdiff1d(old, old[: len(kept)] if last_first else old[kept]))
        fresh = picks[picks >= len(old)] - len(old)
        rows += list(new[fresh] if ranked is None else new[: len(fresh)])
    return np.array(sorted(free)[: len(rows)], np.int64), np.array(rows, np.int64)
