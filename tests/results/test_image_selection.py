"""Selection of the images that a record keeps."""

from __future__ import annotations

import numpy as np

from itl.results.image_selection import balanced_subset, select_mistakes


def test_balanced_subset_takes_equally_many_of_each_class() -> None:
    labels = np.array([2, 0, 0, 1, 0, 0, 2, 0])
    assert labels[balanced_subset(labels, 5)].tolist() == [0, 0, 1, 2, 2]
    assert balanced_subset(labels, 100).tolist() == [1, 2, 4, 5, 7, 3, 0, 6]
    assert balanced_subset(np.zeros(0, int), 5).tolist() == []


def test_select_mistakes_orders_by_confusion_count_and_confidence() -> None:
    label = np.array([0, 0, 0, 1, 1, 2])
    guess = np.array([1, 1, 1, 0, 1, 2])
    confidence = np.array([0.5, 0.9, 0.7, 0.99, 1.0, 1.0], np.float16)
    assert select_mistakes(label, guess, confidence).tolist() == [1, 3, 2, 0]
    assert select_mistakes(label, guess, confidence, 2).tolist() == [1, 3]
    assert select_mistakes(label, label, confidence).tolist() == []
