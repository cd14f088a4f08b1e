"""The estimated accuracy of joint training on all images in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import RidgeClassifierCV
from sklearn.preprocessing import StandardScaler

from itl.apps.model import Model
from itl.apps.model.joint_training_estimate import STRENGTHS, estimate_retraining, evaluated_rows
from support.tiny_model import NAMES, tiny_task, trained_model


def classifier_inputs(model: Model, pixels: torch.Tensor) -> np.ndarray:
    """Inputs of the classifier layer when the model predicts."""
    seen: list[torch.Tensor] = []
    hook = model.learner.net.classifier.register_forward_pre_hook(lambda _, args: seen.append(args[0].detach()))
    model.predict(pixels)
    hook.remove()
    return torch.cat(seen).double().numpy()


def test_estimate_equals_the_accuracy_of_a_classifier_fitted_to_the_memory(tmp_path: Path) -> None:
    trained_model(tmp_path / "m", buffer=24)
    model = Model.open(tmp_path / "m", device="cpu", memory=False)  # as commands open it
    memory = Model.open(tmp_path / "m", device="cpu").learner.memory
    pixels, labels = tiny_task(*NAMES, each=15, seed=5)
    predicted = model.predict(pixels).tolist()
    estimate = estimate_retraining(model, pixels, labels, predicted)
    assert estimate is not None
    assert (estimate.remembered, estimate.images) == (len(memory), len(labels))
    assert estimate.now == pytest.approx(100 * np.mean([a == b for a, b in zip(predicted, labels, strict=True)]))

    scaler, classifier = StandardScaler(), RidgeClassifierCV(STRENGTHS)
    remembered = scaler.fit_transform(classifier_inputs(model, memory.pixels[: len(memory)]))
    classifier.fit(remembered, [model.output_names[label] for label in memory.labels])
    expected = classifier.score(scaler.transform(classifier_inputs(model, pixels)), labels)
    assert estimate.accuracy == pytest.approx(100 * expected, abs=2)


def test_a_memory_without_images_gives_no_estimate(tmp_path: Path) -> None:
    model = trained_model(tmp_path / "m", method="sgd", buffer=0)
    pixels, labels = tiny_task(*NAMES)
    assert estimate_retraining(model, pixels, labels, labels) is None


def test_evaluated_rows_are_spread_evenly() -> None:
    assert evaluated_rows(3).tolist() == [0, 1, 2]
    rows = evaluated_rows(2000)
    assert (len(rows), rows[0], rows[-1]) == (500, 0, 1999)
    assert len(evaluated_rows(0)) == 0
