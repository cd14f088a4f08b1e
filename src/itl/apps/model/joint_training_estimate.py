"""Estimate the accuracy of joint training on the images in memory, without training the network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from itl.apps.model.folder import Model
from itl.apps.model.input_format import read_model_images
from itl.apps.model.memory_images import class_folder_names, image_path
from itl.learner.inference import compute_features
from itl.streams import Images

MAX_IMAGES = 500  # remembered images, and evaluated images; of more, some are chosen
STRENGTHS = tuple(10.0**k for k in range(-1, 6))  # candidates for the strength of the regularization


@dataclass(frozen=True)
class RetrainingEstimate:
    """The result of `estimate_retraining`.

    Attributes:
        remembered: Number of remembered images that the new classifier was trained on.
        images: Number of images that it was evaluated on.
        accuracy: Its accuracy on them in percent.
        now: The model's accuracy on the same images in percent.
    """

    remembered: int
    images: int
    accuracy: float
    now: float


def evaluated_rows(count: int) -> np.ndarray:
    """Return which of `count` images `estimate_retraining` takes, at most `MAX_IMAGES`, spread evenly."""
    return np.linspace(0, count - 1, min(MAX_IMAGES, count)).round().astype(np.int64)


def estimate_retraining(
    model: Model, pixels: Tensor, labels: Sequence[str], predicted: Sequence[str]
) -> RetrainingEstimate | None:
    """Train a new classifier on the features of remembered images of all lessons together, and evaluate it.

    The other layers stay as they are, so this takes seconds. It shows whether the order of the lessons has cost
    accuracy: then the new classifier is better than the present one.

    Args:
        model: The model.
        pixels: Images to evaluate, uint8 `[n, c, h, w]`, that were not trained on.
        labels: Their classes.
        predicted: What the model takes them for.

    Returns:
        The estimate; None if fewer than two classes have image files in memory.
    """
    from sklearn.linear_model import RidgeClassifierCV  # type: ignore[import-untyped]
    from sklearn.pipeline import make_pipeline  # type: ignore[import-untyped]
    from sklearn.preprocessing import StandardScaler  # type: ignore[import-untyped]

    remembered, classes = _remembered(model)
    if len(set(classes)) < 2:
        return None
    classifier = make_pipeline(StandardScaler(), RidgeClassifierCV(STRENGTHS))
    classifier.fit(_features(model, remembered), classes)
    truth = np.array(labels)
    correct = classifier.predict(_features(model, pixels)) == truth
    now = 100 * float((np.array(predicted) == truth).mean())
    return RetrainingEstimate(len(classes), len(truth), 100 * float(correct.mean()), now)


def _remembered(model: Model) -> tuple[Tensor, list[str]]:
    """Pixels and classes of at most `MAX_IMAGES` images in memory, the same share of each class.

    The files are read, not `Memory`, because most commands open a model without its memory.
    """
    labels, folders = model.learner.memory.labels, class_folder_names(model.output_names)
    by_class = np.argsort(labels, kind="stable")
    slots = by_class[evaluated_rows(len(labels))].tolist()
    generation = model.path / str(model.generation)
    read = read_model_images(model, [generation / image_path(folders, labels[slot], slot) for slot in slots])
    return read.pixels, [model.output_names[labels[slots[k]]] for k in read.indices]


def _features(model: Model, pixels: Tensor) -> np.ndarray:
    images = Images(pixels, torch.zeros(len(pixels), dtype=torch.int64))
    return compute_features(model.learner, images).flatten(1).double().numpy()
