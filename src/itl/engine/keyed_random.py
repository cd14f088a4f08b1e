"""Randomness without hidden state: every draw comes from a counter-based generator keyed by what it is for.

A key such as (seed, task, "specialist", epoch, "replay") always gives the same numbers, whatever was drawn before it:
an interrupted run continues exactly, stages can be redone alone, and every device sees the same plan.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch

Key = tuple[int | str, ...]


def _digest(key: Key) -> bytes:
    text = "/".join(f"{type(part).__name__}:{part}" for part in key)
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def generator(*key: int | str) -> np.random.Generator:
    """A NumPy generator (Philox, counter-based) for `key`."""
    words = np.frombuffer(_digest(key), dtype="<u8")
    return np.random.Generator(np.random.Philox(key=words.astype(np.uint64)))


def torch_generator(*key: int | str) -> torch.Generator:
    """A CPU torch generator for `key`, for drawing weights."""
    return torch.Generator().manual_seed(int.from_bytes(_digest(key)[:7], "little"))


def sample_without_replacement(rng: np.random.Generator, rows: int, size: int, count: int) -> np.ndarray:
    """`rows` independent draws of `count` different numbers below `size`: int64 `[rows, count]`, in random order.

    Repeats are drawn again until none is left, which is exact (each row is a uniform ordered sample without
    replacement) and, unlike sorting random keys, costs nothing that grows with `size` when `count` is small.
    """
    if count > size:
        raise ValueError(f"cannot choose {count} different numbers below {size}")
    if 4 * count > size:  # repeats would be frequent: shuffle instead
        return np.argsort(rng.random((rows, size)), axis=1)[:, :count].astype(np.int64)
    picks = rng.integers(0, size, (rows, count))
    while True:
        order = np.argsort(picks, axis=1, kind="stable")
        ranked = np.take_along_axis(picks, order, 1)
        again = np.zeros((rows, count), bool)
        np.put_along_axis(again[:, :], order[:, 1:], ranked[:, 1:] == ranked[:, :-1], 1)
        redo = int(again.sum())
        if not redo:
            return picks
        picks[again] = rng.integers(0, size, redo)
