"""How good a model is on labelled images: accuracy by class, confusion, and whether its confidence can be believed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

BINS = 15  # of confidence, for the calibration error


@dataclass(frozen=True)
class EvaluationResult:
    """`confusion[i, j]`: how many images of class i were taken for class j, classes as in `classes`.

    `bins` has a row for each bin of confidence that holds an image: (images, mean confidence, accuracy), in 0..1.
    """

    classes: list[str]
    confusion: np.ndarray
    bins: list[tuple[int, float, float]]

    @property
    def images(self) -> int:
        """How many images were judged."""
        return int(self.confusion.sum())

    @property
    def accuracy(self) -> float:
        """Percent of images whose class was found."""
        return float(100 * np.trace(self.confusion) / max(self.images, 1))

    @property
    def calibration_error(self) -> float:
        """Expected calibration error in percent: how far confidence and accuracy differ, averaged over the images."""
        gaps = sum(count * abs(confidence - accuracy) for count, confidence, accuracy in self.bins)
        return 100 * gaps / max(self.images, 1)

    @property
    def confidence(self) -> float:
        """The mean confidence, in percent."""
        return 100 * sum(count * confidence for count, confidence, _ in self.bins) / max(self.images, 1)

    def per_class(self) -> list[dict[str, Any]]:
        """For each class that has images: how many, how many percent were found, and what it is mostly taken for."""
        out = []
        for k, name in enumerate(self.classes):
            row = self.confusion[k]
            if row.sum():
                wrong = row.copy()
                wrong[k] = 0
                other = (
                    {"class": self.classes[int(wrong.argmax())], "images": int(wrong.max())} if wrong.any() else None
                )
                facts = {"images": int(row.sum()), "accuracy": float(100 * row[k] / row.sum()), "taken_for": other}
                out.append({"class": name, **facts})
        return out

    def to_dict(self) -> dict[str, Any]:
        """All of it for a machine."""
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
    """Judge probabilities `[n, classes]` against the names of the right classes `[n]`."""
    places = {name: place for place, name in enumerate(classes)}
    truth = np.array([places[name] for name in labels], np.int64)
    found, confidence = probabilities.argmax(1), probabilities.max(1)
    confusion = np.zeros((len(classes), len(classes)), np.int64)
    np.add.at(confusion, (truth, found), 1)
    # Bins are (k/15, (k+1)/15]: a certainty of 1 belongs to the last one.
    place = np.clip(np.ceil(confidence * BINS).astype(np.int64) - 1, 0, BINS - 1)
    bins = []
    for k in range(BINS):
        here = place == k
        if here.any():
            bins.append((int(here.sum()), float(confidence[here].mean()), float((found == truth)[here].mean())))
    return EvaluationResult(list(classes), confusion, bins)
