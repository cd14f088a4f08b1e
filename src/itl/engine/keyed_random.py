"""Random numbers without hidden state: every draw uses a counter-based generator keyed by its purpose.

A key such as (seed, task, "specialist", epoch, "replay") always gives the same numbers, whatever was drawn before.
Interrupted runs therefore continue exactly, stages can be repeated alone, and every device sees the same plan.
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
    """Draw `count` different numbers below `size`, independently for each of `rows` rows.

    Duplicates are redrawn until none is left. This is exact (each row is a uniform ordered sample without replacement)
    and, unlike sorting random keys, its cost does not grow with `size` when `count` is small.

    Returns:
        int64 `[rows, count]`, in random order.

    Raises:
        ValueError: `count` is larger than `size`.
    """
    if count > size:
        raise ValueError(f"cannot choose {count} different numbers below {size}")
    if 4 * count > size:  # duplicates would be frequent: shuffle instead
        return np.argsort(rng.random((rows, size)), axis=1)[:, :count].astype(np.int64)
    picks = rng.integers(0, size, (rows, count))
    while True:
        order = np.argsort(picks, axis=1, kind="stable")
        ranked = np.take_along_axis(picks, order, 1)
        duplicate = np.zeros((rows, count), bool)
        np.put_along_axis(duplicate[:, :], order[:, 1:], ranked[:, 1:] == ranked[:, :-1], 1)
        redraws = int(duplicate.sum())
        if not redraws:
            return picks
        picks[duplicate] = rng.integers(0, size, redraws)
