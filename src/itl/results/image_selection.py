"""Which images of a run are worth keeping for a look: a fair part of the memory, and telling mistakes."""

from __future__ import annotations

from collections import defaultdict
from itertools import islice

import numpy as np

MEMORY, MISTAKES = 200, 48  # images kept of each


def balanced_subset(labels: np.ndarray, count: int = MEMORY) -> np.ndarray:
    """At most `count` places of `labels` `[n]`, in turn from every class, ascending by class and place."""
    order = np.argsort(labels, kind="stable")
    turns = _turns(labels[order])
    chosen = order[np.lexsort((labels[order], turns))[:count]]
    return chosen[np.lexsort((chosen, labels[chosen]))]


def _turns(sorted_labels: np.ndarray) -> np.ndarray:
    """The how-manieth of its class each of the sorted labels is."""
    _, first, inverse = np.unique(sorted_labels, return_index=True, return_inverse=True)
    return np.arange(len(sorted_labels)) - first[inverse]


def select_mistakes(label: np.ndarray, guess: np.ndarray, confidence: np.ndarray, count: int = MISTAKES) -> np.ndarray:
    """Places of wrong guesses worth looking at: of the commonest confusions the surest first, then their next ones."""
    wrong = np.flatnonzero(label != guess)
    wrong = wrong[np.argsort(-confidence[wrong].astype(np.float64), kind="stable")]
    pairs: dict[tuple[int, int], list[int]] = defaultdict(list)
    for place in wrong.tolist():
        pairs[int(label[place]), int(guess[place])].append(place)
    common = sorted(pairs.values(), key=len, reverse=True)
    rounds = (places[turn] for turn in range(count) for places in common if turn < len(places))
    return np.array(list(islice(rounds, count)), dtype=np.int64)
