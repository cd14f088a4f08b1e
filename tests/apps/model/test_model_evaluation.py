"""Accuracy, confusion and calibration, held against scikit-learn and against a computation written out."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, confusion_matrix

from itl.apps.model.evaluation import BINS, evaluate_predictions

CLASSES = ["ant", "bee", "cow", "doe"]


def opinions(n: int = 400, seed: int = 0) -> tuple[np.ndarray, list[str]]:
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, len(CLASSES))) * 2
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    truth = np.where(rng.random(n) < 0.6, probabilities.argmax(1), rng.integers(0, 3, n))  # no doe among the wrong
    return probabilities, [CLASSES[k] for k in truth]


def test_accuracy_and_confusion_are_scikit_learns() -> None:
    probabilities, labels = opinions()
    found = [CLASSES[k] for k in probabilities.argmax(1)]
    verdict = evaluate_predictions(CLASSES, probabilities, labels)
    assert (verdict.confusion == confusion_matrix(labels, found, labels=CLASSES)).all()
    assert verdict.accuracy == pytest.approx(100 * accuracy_score(labels, found))
    for row in verdict.per_class():
        mine = [f for f, name in zip(found, labels, strict=True) if name == row["class"]]
        assert row["images"] == len(mine)
        assert row["accuracy"] == pytest.approx(100 * mine.count(row["class"]) / len(mine))
        others = {name: mine.count(name) for name in CLASSES if name != row["class"]}
        if row["taken_for"] is None:
            assert set(others.values()) == {0}
        else:
            assert row["taken_for"]["images"] == max(others.values()) == others[row["taken_for"]["class"]]


def test_calibration_error_is_its_definition() -> None:
    probabilities, labels = opinions()
    confidence = probabilities.max(1)
    right = np.array([CLASSES[k] for k in probabilities.argmax(1)]) == np.array(labels)
    error = 0.0
    for k in range(BINS):
        here = (confidence > k / BINS) & (confidence <= (k + 1) / BINS)
        if here.any():
            error += here.mean() * abs(confidence[here].mean() - right[here].mean())
    verdict = evaluate_predictions(CLASSES, probabilities, labels)
    assert verdict.calibration_error == pytest.approx(100 * error)
    assert verdict.confidence == pytest.approx(100 * confidence.mean())
    assert 5 < verdict.calibration_error < 60


def test_one_who_is_always_right_and_sure_is_calibrated() -> None:
    verdict = evaluate_predictions(CLASSES, np.eye(4), CLASSES)
    assert (verdict.accuracy, verdict.calibration_error) == (100.0, 0.0)
    assert all(row["taken_for"] is None for row in verdict.per_class())
    assert evaluate_predictions(CLASSES, np.eye(4)[[1, 1]], ["ant", "ant"]).calibration_error == 100.0
