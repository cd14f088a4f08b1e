"""Selects the images that a record keeps: a class-balanced part of the memory, and informative mistakes."""

from __future__ import annotations

from collections import defaultdict
from itertools import islice

import numpy as np

MAX_MEMORY_IMAGES, MAX_MISTAKES = 200, 48


def balanced_subset(labels: np.ndarray, count: int = MAX_MEMORY_IMAGES) -> np.ndarray:
    """At most `count` indices into `labels` `[n]`, evenly from all classes, sorted by class and index."""
    order = np.argsort(labels, kind="stable")
    ranks = _rank_within_class(labels[order])
    chosen = order[np.lexsort((labels[order], ranks))[:count]]
    return chosen[np.lexsort((chosen, labels[chosen]))]


def _rank_within_class(sorted_labels: np.ndarray) -> np.ndarray:
    """Rank of each label within its class."""
    _, first, inverse = np.unique(sorted_labels, return_index=True, return_inverse=True)
    return np.arange(len(sorted_labels)) - first[inverse]


def select_mistakes(
    label: np.ndarray, guess: np.ndarray, confidence: np.ndarray, count: int = MAX_MISTAKES
) -> np.ndarray:
    """Indices of at most `count` wrong predictions, the most confident of each common confusion first."""
    wrong = np.flatnonzero(label != guess)
    wrong = wrong[np.argsort(-confidence[wrong].astype(np.float64), kind="stable")]
    pairs: dict[tuple[int, int], list[int]] = defaultdict(list)
    for index in wrong.tolist():
        pairs[int(label[index]), int(guess[index])].append(index)
    common = sorted(pairs.values(), key=len, reverse=True)
    ordered = (indices[rank] for rank in range(count) for indices in common if rank < len(indices))
    return np.array(list(islice(ordered, count)), dtype=np.int64)
