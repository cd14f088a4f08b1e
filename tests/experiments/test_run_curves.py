"""The learning curves of a run: how many points, of which rounds, on which images."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from itl.experiments import recorder
from itl.experiments.run import Config, run
from support.records import lines_of
from support.tiny import TINY, tiny_stream


@pytest.mark.parametrize(("epochs", "points"), [(2, 2), (120, 8)])
def test_long_stage_has_a_curve_over_all_its_rounds(epochs: int, points: int, tmp_path: Path) -> None:
    """A memory of 8 in batches of 8 is one step an epoch, several epochs a round."""
    settings = {**TINY, "tangent.epochs": epochs, "tangent.batch": 8, "projection.epochs": 1, "specialist.epochs": 1}
    stream = tiny_stream(classes=2, tasks=1)
    run(Config("arrays", "itl", 8, 0, settings, curves=16), stream, tmp_path, device="cpu", save=False)
    curve = [line["epoch"] for line in lines_of(tmp_path) if line["kind"] == "curve" and line["stage"] == "tangent"]
    assert len(curve) == points
    assert curve[-1] == epochs


def test_curve_of_a_stage_with_many_rounds_is_bounded(tmp_path: Path) -> None:
    settings = {**TINY, "specialist.epochs": 11, "specialist.batch": 20}
    stream = tiny_stream(classes=2, tasks=1)
    run(Config("arrays", "sgd", 8, 0, settings, curves=4), stream, tmp_path, device="cpu", save=False)
    assert [line["epoch"] for line in lines_of(tmp_path) if line["kind"] == "curve"] == [3, 6, 9, 11]


@pytest.mark.parametrize(("epochs", "points"), [(2, 0), (8, 1), (16, 2)])
def test_default_curve_costs_about_one_percent_of_the_training(epochs: int, points: int, tmp_path: Path) -> None:
    """Number of points: 0.01 · 8 · 2 · 20 · epochs / (2 · 12 test images).

    An evaluation costs an eighth of a training step. An epoch takes as many images from the memory as from the task,
    20. The other two stages together have as many points as the specialist.
    """
    settings = {**TINY, "specialist.epochs": epochs, "tangent.epochs": 4, "projection.epochs": 4}
    stream = tiny_stream(classes=2, tasks=1)
    result = run(Config("arrays", "itl", 8, 0, settings), stream, tmp_path, device="cpu", save=False)
    lines = lines_of(tmp_path)
    kinds = [(line["kind"], line["stage"]) for line in lines]
    assert kinds.count(("curve", "specialist")) == points
    assert kinds.count(("curve", "tangent")) == kinds.count(("curve", "projection")) == (points + 1) // 2
    assert kinds.count(("start", "tangent")) == bool(points)
    assert "--curves" not in result["command"]


def test_record_shows_the_accuracy_drop_of_the_half_pipe(tmp_path: Path) -> None:
    settings = {**TINY, "specialist.epochs": 12, "tangent.epochs": 12, "projection.epochs": 12}
    run(Config("arrays", "itl", 24, 0, settings), tiny_stream(classes=6, each=30), tmp_path, device="cpu", save=False)
    lines = lines_of(tmp_path)
    for task in (1, 2):
        at = {(i["kind"], i["stage"]): i["class_il"] for i in lines if i["task"] == task}
        assert at["start", "tangent"] == at["start", "projection"]  # both start from the redrawn classifier
        assert at["start", "tangent"] < at["end", "specialist"] - 20


def test_curve_subset_of_the_test_images_is_fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "CURVE_IMAGES", 5)
    test = tiny_stream().tasks[0].test
    first, second = recorder._subset(test), recorder._subset(test)
    assert len(first) == 5
    assert torch.equal(first.pixels, second.pixels)
    assert torch.equal(first.labels, second.labels)
