"""Which images are kept for a look."""

from __future__ import annotations

import numpy as np

from itl.results.image_selection import balanced_subset, select_mistakes


def test_every_class_gives_as_many_as_the_others_while_it_has_them() -> None:
    labels = np.array([2, 0, 0, 1, 0, 0, 2, 0])
    assert labels[balanced_subset(labels, 5)].tolist() == [0, 0, 1, 2, 2]
    assert balanced_subset(labels, 100).tolist() == [1, 2, 4, 5, 7, 3, 0, 6]
    assert balanced_subset(np.zeros(0, int), 5).tolist() == []


def test_the_commonest_confusion_comes_first_and_its_surest_guess_before_its_others() -> None:
    label = np.array([0, 0, 0, 1, 1, 2])
    guess = np.array([1, 1, 1, 0, 1, 2])
    confidence = np.array([0.5, 0.9, 0.7, 0.99, 1.0, 1.0], np.float16)
    assert select_mistakes(label, guess, confidence).tolist() == [1, 3, 2, 0]
    assert select_mistakes(label, guess, confidence, 2).tolist() == [1, 3]
    assert select_mistakes(label, label, confidence).tolist() == []
