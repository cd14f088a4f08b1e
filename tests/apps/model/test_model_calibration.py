"""The temperature and the threshold for "unknown", compared with closed forms and with their definitions."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from itl import UserError
from itl.apps.model import Model
from itl.apps.model.calibration import (
    FALSE_REJECTION_RATE,
    MIN_IMAGES,
    TEMPERATURES,
    Calibration,
    Outputs,
    fit_calibration,
    fit_temperature,
    fit_threshold,
)
from itl.apps.model.evaluation import evaluate_predictions, rejection_curve
from itl.apps.model.metadata import read_metadata
from itl.checkpoint import store
from support.tiny_model import tiny_task, trained_model

NAMES = ["cat", "dog", "eel", "fox"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return trained_model(tmp_path_factory.mktemp("calibration") / "m")


@pytest.mark.parametrize(("margin", "wrong"), [(3.0, 10), (0.2, 30), (8.0, 0)])
def test_temperature_of_two_classes_equals_the_closed_form(margin: float, wrong: int) -> None:
    """Logits ±margin/2, of which a share q is right: the best probability is q, so T = margin / log(q / (1 - q))."""
    n = 100
    logits = torch.tensor([[margin / 2, -margin / 2]]).repeat(n, 1)
    labels = torch.tensor([1] * wrong + [0] * (n - wrong))
    smoothing = 1 / (n + 2)
    q = (1 - smoothing) * (n - wrong) / n + smoothing * wrong / n
    assert fit_temperature(logits, labels, torch.eye(2)) == pytest.approx(margin / np.log(q / (1 - q)), rel=1e-4)


def test_temperature_recovers_the_factor_of_overconfident_logits() -> None:
    generator = torch.Generator().manual_seed(0)
    calibrated = torch.randn(20_000, 5, generator=generator) * 2
    labels = torch.multinomial(calibrated.softmax(1), 1, generator=generator).flatten()
    assert fit_temperature(3 * calibrated, labels, torch.eye(5)) == pytest.approx(3, rel=0.03)
    assert fit_temperature(calibrated / 4, labels, torch.eye(5)) == pytest.approx(0.25, rel=0.03)


def test_temperature_of_merged_outputs_compares_with_the_sum_of_their_probabilities() -> None:
    """Two merged outputs with equal logits z, and a third output with 0: the class has odds 2 exp(z / T)."""
    logits, share = torch.tensor([[1.0, 1.0, 0.0]]).repeat(100, 1), 0.9
    labels = torch.tensor([0] * 90 + [1] * 10)
    q = (1 - 1 / 102) * share + (1 - share) / 102
    matrix = torch.tensor([[1.0, 0], [1, 0], [0, 1]])
    assert fit_temperature(logits, labels, matrix) == pytest.approx(1 / np.log(q / (1 - q) / 2), rel=1e-4)


@pytest.mark.parametrize("seed", range(5))
def test_temperature_equals_that_of_scipy(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(40, 4, generator=generator) * 10.0 ** (seed - 2)
    labels = torch.randint(0, 4, (40,), generator=generator)
    targets = np.full((40, 4), 1 / 42 / 3)
    targets[np.arange(40), labels.numpy()] = 1 - 1 / 42

    def cross_entropy(log_temperature: float) -> float:
        return -(targets * log_softmax(logits.double().numpy() / np.exp(log_temperature), axis=1)).sum()

    best = minimize_scalar(cross_entropy, bounds=np.log(TEMPERATURES), method="bounded", options={"xatol": 1e-7})
    assert fit_temperature(logits, labels, torch.eye(4)) == pytest.approx(np.exp(best.x), rel=1e-4)


def test_threshold_rejects_the_stated_share_of_new_images() -> None:
    rng = np.random.default_rng(0)
    rejected = [float((rng.normal(size=1000) < fit_threshold(rng.normal(size=59))).mean()) for _ in range(300)]
    assert np.mean(rejected) == pytest.approx(FALSE_REJECTION_RATE, abs=0.005)


def test_threshold_is_the_order_statistic() -> None:
    scores = np.random.default_rng(0).permutation(100) / 100
    assert fit_threshold(scores) == 0.04  # the 5th smallest: 4 of 100 are below
    assert "at most 5% of the 100 held-out" in Calibration(threshold=0.04, images=100).rule
    assert fit_threshold(scores[:19]) == scores[:19].min()
    assert fit_threshold(scores[:18]) is None


def test_few_images_are_not_enough() -> None:
    logits = torch.randn(MIN_IMAGES, 3)
    labels = torch.zeros(MIN_IMAGES, dtype=torch.int64)
    assert fit_calibration(Outputs(logits[1:]), labels[1:], torch.eye(3)) is None
    fitted = fit_calibration(Outputs(logits), labels, torch.eye(3))
    assert fitted is not None
    assert (fitted.images, fitted.score) == (MIN_IMAGES, "probability")


def test_threshold_applies_to_its_own_score_only() -> None:
    calibration, scores = Calibration(threshold=0.5, score="probability", images=40), np.array([0.2, 0.5, 0.9])
    assert calibration.is_unknown(scores, "probability").tolist() == [True, False, False]
    assert not calibration.is_unknown(scores, "relative distance").any()
    assert not Calibration(score="probability").is_unknown(scores, "probability").any()


def test_a_threshold_of_the_former_score_is_dropped() -> None:
    saved = {"temperature": 2.0, "threshold": 3.5, "score": "familiarity", "images": 40}
    assert Calibration.model_validate(saved) == Calibration(temperature=2.0)


def test_expected_calibration_error_equals_a_manual_computation() -> None:
    """Confidences 0.9, 0.9 (one right), 0.6, 0.55 (both right) lie in bins 14, 14, 9 and 9 of 15.

    The error is 2/4 · |0.9 - 0.5| + 2/4 · |0.575 - 1| = 0.4125.
    """
    probabilities = np.array([[0.9, 0.1], [0.1, 0.9], [0.6, 0.4], [0.55, 0.45]])
    result = evaluate_predictions(["a", "b"], probabilities, ["a", "a", "a", "a"])
    assert result.calibration_error == pytest.approx(41.25)


def test_rejection_curve_gives_the_accuracy_of_the_remaining_images() -> None:
    """Of ten images the two with the lowest scores are wrong, and one of the others."""
    correct = np.array([False, False, True, True, True, True, False, True, True, True])
    rows = {row["rejected"]: row for row in rejection_curve(np.arange(10.0), correct)}
    assert [rows[percent]["images"] for percent in (0, 10, 20, 50)] == [10, 9, 8, 5]
    assert rows[0]["accuracy"] == pytest.approx(70)
    assert rows[10]["accuracy"] == pytest.approx(100 * 7 / 9)
    assert rows[20]["accuracy"] == pytest.approx(100 * 7 / 8)
    assert rows[50]["accuracy"] == pytest.approx(80)


# --------------------------------------------------------------------------------------------------- model folders


def test_calibrated_model_is_saved_and_predicts_the_same_classes(model: Model) -> None:
    images, labels = tiny_task(*NAMES, seed=3)
    plain = model.predict_proba(images)
    model.calibrate(model.outputs(images), labels)
    model.save()
    opened = Model.open(model.path, device="cpu")
    assert opened.calibration == model.calibration
    assert opened.calibration.images == len(labels)
    assert opened.calibration.temperature != 1.0
    predictions = opened.classify(images)
    assert (predictions.labels == np.array(model.classes)[plain.argmax(1)]).all()
    assert predictions.unknown.sum() == 1  # the 2nd smallest of 40 scores is the threshold
    assert (predictions.unknown == (predictions.probabilities.max(1) < opened.calibration.threshold)).all()
    np.testing.assert_allclose(
        predictions.probabilities,
        (opened.learner.logits(opened._as_images(images)).double() / opened.calibration.temperature).softmax(1),
    )


def test_lesson_without_held_out_images_rejects_nothing(model: Model) -> None:
    model.calibration = Calibration(temperature=2.0, threshold=0.5, images=40)
    model.calibrate(model.outputs(tiny_task("cat", each=4)[0]), ["cat"] * 4)
    assert model.calibration == Calibration(temperature=2.0)
    assert not model.classify(tiny_task(*NAMES)[0]).unknown.any()


def test_state_without_calibration_has_temperature_1_and_no_threshold(model: Model) -> None:
    model.save()
    state = json.loads((model.path / store.current(model.path) / "state.json").read_text())
    del state["notes"]["model"]["calibration"]
    assert read_metadata(model.path, state).calibration == Calibration(temperature=1.0, threshold=None)
    for wrong in ({"temperature": 0.0}, {"threshold": "high"}, []):
        state["notes"]["model"]["calibration"] = wrong
        with pytest.raises(UserError, match="calibration"):
            read_metadata(model.path, state)
