"""Evaluate predicted probabilities on labeled images: accuracy by class, confusion matrix and calibration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

CONFIDENCE_BINS = 15  # for the expected calibration error
REJECTED_PERCENT = (0, 5, 10, 20, 30, 50)  # points of the curve of accuracy and rejection


@dataclass(frozen=True)
class EvaluationResult:
    """The result of `evaluate_predictions`.

    Attributes:
        classes: Class names.
        confusion: `[classes, classes]`; `confusion[i, j]` counts images of class i that were predicted as class j.
        bins: For each non-empty bin of confidence: number of images, mean confidence and accuracy, both in 0..1.
    """

    classes: list[str]
    confusion: np.ndarray
    bins: list[tuple[int, float, float]]

    @property
    def images(self) -> int:
        """Number of images."""
        return int(self.confusion.sum())

    @property
    def accuracy(self) -> float:
        """Percent of images that were classified correctly."""
        return float(100 * np.trace(self.confusion) / max(self.images, 1))

    @property
    def calibration_error(self) -> float:
        """Expected calibration error in percent: |confidence - accuracy| of each bin, averaged over the images."""
        gaps = sum(count * abs(confidence - accuracy) for count, confidence, accuracy in self.bins)
        return 100 * gaps / max(self.images, 1)

    @property
    def confidence(self) -> float:
        """Mean confidence in percent."""
        return 100 * sum(count * confidence for count, confidence, _ in self.bins) / max(self.images, 1)

    def per_class(self) -> list[dict[str, Any]]:
        """Return, for each class with images, their number, the accuracy in percent and the most frequent mistake."""
        rows = []
        for k, name in enumerate(self.classes):
            counts = self.confusion[k]
            if not counts.any():
                continue
            wrong = counts.copy()
            wrong[k] = 0
            mistake = {"class": self.classes[int(wrong.argmax())], "images": int(wrong.max())} if wrong.any() else None
            accuracy = float(100 * counts[k] / counts.sum())
            rows.append({"class": name, "images": int(counts.sum()), "accuracy": accuracy, "taken_for": mistake})
        return rows

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serializable dict with the keys of `itl eval --json`."""
        return {
            "images": self.images,
            "accuracy": self.accuracy,
            "confidence": self.confidence,
            "calibration_error": self.calibration_error,
            "per_class": self.per_class(),
            "classes": self.classes,
            "confusion": self.confusion.tolist(),
            "bins": [dict(zip(("images", "confidence", "accuracy"), row, strict=True)) for row in self.bins],
        }


def evaluate_predictions(classes: Sequence[str], probabilities: np.ndarray, labels: Sequence[str]) -> EvaluationResult:
    """Compare predicted probabilities with the true classes.

    Args:
        classes: Class names, in the order of the columns of `probabilities`.
        probabilities: `[n, classes]`, such as `Model.predict_proba` returns.
        labels: The true class name of each image, `[n]`.

    Returns:
        Accuracy, confusion matrix and calibration.
    """
    columns = {name: column for column, name in enumerate(classes)}
    truth = np.array([columns[name] for name in labels], np.int64)
    predicted, confidence = probabilities.argmax(1), probabilities.max(1)
    confusion = np.zeros((len(classes), len(classes)), np.int64)
    np.add.at(confusion, (truth, predicted), 1)
    # Bins are (k/15, (k+1)/15]: a confidence of 1 belongs to the last one.
    bin_of = np.clip(np.ceil(confidence * CONFIDENCE_BINS).astype(np.int64) - 1, 0, CONFIDENCE_BINS - 1)
    correct = predicted == truth
    bins = []
    for k in np.unique(bin_of):
        rows = bin_of == k
        bins.append((int(rows.sum()), float(confidence[rows].mean()), float(correct[rows].mean())))
    return EvaluationResult(list(classes), confusion, bins)


def rejection_curve(scores: np.ndarray, correct: np.ndarray) -> list[dict[str, Any]]:
    """Return the accuracy on the images that are left if those with the lowest scores are rejected.

    Args:
        scores: The score of each image `[n]`, from `Predictions`.
        correct: Whether it was classified correctly, bool `[n]`.

    Returns:
        For each of `REJECTED_PERCENT`: the percentage of rejected images, and the accuracy on the others in percent.
    """
    best_first = correct[np.argsort(-scores, kind="stable")]
    rows = []
    for percent in REJECTED_PERCENT:
        kept = len(best_first) - len(best_first) * percent // 100
        rows.append({"rejected": percent, "images": kept, "accuracy": 100 * float(best_first[:kept].mean())})
    return rows
