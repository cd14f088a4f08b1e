"""Accuracy, confusion matrix and calibration, compared with scikit-learn and with the definition."""

from __future__ import annotations

import numpy as np
import pytest

from itl.apps.model.evaluation import CONFIDENCE_BINS, evaluate_predictions

CLASSES = ["ant", "bee", "cow", "doe"]


def random_predictions(n: int = 400, seed: int = 0) -> tuple[np.ndarray, list[str]]:
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, len(CLASSES))) * 2
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    truth = np.where(
        rng.random(n) < 0.6, probabilities.argmax(1), rng.integers(0, 3, n)
    )  # class 3 is never the true class of a wrong prediction
    return probabilities, [CLASSES[k] for k in truth]


def test_accuracy_and_confusion_match_scikit_learn() -> None:
    from sklearn.metrics import accuracy_score, confusion_matrix  # takes seconds

    probabilities, labels = random_predictions()
    predicted = [CLASSES[k] for k in probabilities.argmax(1)]
    result = evaluate_predictions(CLASSES, probabilities, labels)
    assert (result.confusion == confusion_matrix(labels, predicted, labels=CLASSES)).all()
    assert result.accuracy == pytest.approx(100 * accuracy_score(labels, predicted))
    for row in result.per_class():
        predictions = [p for p, name in zip(predicted, labels, strict=True) if name == row["class"]]
        assert row["images"] == len(predictions)
        assert row["accuracy"] == pytest.approx(100 * predictions.count(row["class"]) / len(predictions))
        others = {name: predictions.count(name) for name in CLASSES if name != row["class"]}
        if row["taken_for"] is None:
            assert set(others.values()) == {0}
        else:
            assert row["taken_for"]["images"] == max(others.values()) == others[row["taken_for"]["class"]]


def test_calibration_error_matches_its_definition() -> None:
    probabilities, labels = random_predictions()
    confidence = probabilities.max(1)
    right = np.array([CLASSES[k] for k in probabilities.argmax(1)]) == np.array(labels)
    error = 0.0
    for k in range(CONFIDENCE_BINS):
        rows = (confidence > k / CONFIDENCE_BINS) & (confidence <= (k + 1) / CONFIDENCE_BINS)
        if rows.any():
            error += rows.mean() * abs(confidence[rows].mean() - right[rows].mean())
    result = evaluate_predictions(CLASSES, probabilities, labels)
    assert result.calibration_error == pytest.approx(100 * error)
    assert result.confidence == pytest.approx(100 * confidence.mean())
    assert 5 < result.calibration_error < 60


def test_certain_and_correct_predictions_are_calibrated() -> None:
    result = evaluate_predictions(CLASSES, np.eye(4), CLASSES)
    assert (result.accuracy, result.calibration_error) == (100.0, 0.0)
    assert all(row["taken_for"] is None for row in result.per_class())
    assert evaluate_predictions(CLASSES, np.eye(4)[[1, 1]], ["ant", "ant"]).calibration_error == 100.0
