"""Training until there is no progress, and class-balanced epochs over task and memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from itl import Learner
from itl.callbacks.base import Callback
from itl.engine.stage import StepChunk
from itl.engine.stepper import Stepper
from itl.learner import early_stopping, load_learner
from itl.learner.early_stopping import ConvergenceMonitor
from itl.replay.epoch_plan import stratified_rows
from itl.streams import Task
from support.tiny import differing_keys, learner_snapshot, tiny_learner, tiny_stream

SETTINGS = {"specialist__name": "er-balanced", "specialist__epochs": 12, "specialist__patience": 2}


def validated_tasks(channels: int = 1) -> list[Task]:
    return [replace(task, validation=task.test) for task in tiny_stream(each=12, channels=channels).tasks]


class Watch(Callback):
    """Collects the summaries of the specialist's stages; saves and stops after an epoch if asked to."""

    def __init__(self, stop: tuple[int, int] | None = None, folder: Path | None = None) -> None:
        self.summaries: list[dict[str, Any]] = []
        self.stop, self.folder = stop, folder

    def on_stage_end(self, learner: Learner, stage: Any) -> None:
        if stage.name == "specialist":
            self.summaries.append(dict(stage.summary))

    def on_round_end(self, learner: Learner, stage: Any, epoch: int, loss: float) -> None:
        if stage.name == "specialist" and (len(learner.tasks), epoch) == self.stop:
            learner.save(self.folder)
            raise KeyboardInterrupt


def fake_monitor(values: list[float], patience: int = 2, epochs: int = 100) -> ConvergenceMonitor:
    monitor = ConvergenceMonitor(SimpleNamespace(), None, patience, epochs, {})  # type: ignore[arg-type]
    for value in values:
        monitor.after_round(False, value)
    return monitor


def test_rate_drops_after_the_patience_and_training_stops_after_another() -> None:
    falling = [1.0, 0.9, 0.8]
    assert (fake_monitor(falling).rate, fake_monitor(falling).waited) == (1.0, 0)
    lower = fake_monitor([*falling, 0.8, 0.795])  # less than a hundredth lower is no progress
    assert (lower.rate, lower.stopped) == (0.1, False)
    still = fake_monitor([*falling, 0.8, 0.8, 0.5, 0.5])
    assert (still.rate, still.stopped) == (0.1, False)
    ended = fake_monitor([*falling, 0.8, 0.8, 0.5, 0.5, 0.5])
    assert (ended.stopped, ended.summary["epochs"], ended.summary["best"]) == (True, 8, 0.5)
    restored = fake_monitor([])
    restored.load_tensors(ended.tensors())
    assert vars(restored) | {"summary": 0, "learner": 0} == vars(ended) | {"summary": 0, "learner": 0}


def test_loss_is_compared_with_the_best_one() -> None:
    """A loss that rises and falls again, but not below its minimum, is no progress."""
    assert fake_monitor([1.0, 0.5, 0.9]).rate == 1.0
    assert fake_monitor([1.0, 0.5, 0.9, 0.8]).rate == 0.1


def test_last_quarter_of_the_epochs_has_the_lower_rate() -> None:
    falling = list(np.linspace(1, 0, 8, endpoint=False))
    assert fake_monitor(falling[:5], epochs=8).rate == 1.0
    assert fake_monitor(falling[:6], epochs=8).rate == 0.1
    assert not fake_monitor(falling, epochs=8).stopped


def test_lower_rate_reaches_the_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[float] = []
    load = Stepper.load

    def recording_load(stepper: Stepper, chunk: StepChunk) -> None:
        rates.extend(torch.cat([group["lr"] for group in chunk.groups]).tolist())
        load(stepper, chunk)

    monkeypatch.setattr(Stepper, "load", recording_load)
    learner = tiny_learner("b", specialist__epochs=4, specialist__patience=9, specialist__lr=0.05)
    learner.learn(tiny_stream(each=12).tasks[0])  # three steps per epoch
    assert rates == pytest.approx([0.05] * 9 + [0.005] * 3)


@pytest.mark.parametrize("validated", [True, False])
def test_stopped_training_resumes_bit_identically(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, validated: bool
) -> None:
    monkeypatch.setattr(early_stopping, "MIN_VALIDATION_IMAGES", 4)
    tasks = validated_tasks() if validated else tiny_stream(each=12).tasks
    watch = Watch()
    whole = tiny_learner(callback=watch, **SETTINGS)
    for task in tasks:
        whole.learn(task)
    epochs = [summary["epochs"] for summary in watch.summaries]
    assert watch.summaries[0]["measure"] == ("validation accuracy" if validated else "training loss")
    assert any(summary["stopped"] for summary in watch.summaries) or not validated
    for stop in [(1, 1), (2, epochs[1] - 1), (2, epochs[1])]:
        parts = tiny_learner(callback=Watch(stop, tmp_path / "m"), **SETTINGS)
        for task in tasks[: stop[0] - 1]:
            parts.learn(task)
        with pytest.raises(KeyboardInterrupt):
            parts.learn(tasks[stop[0] - 1])
        resumed_watch = Watch()
        resumed = load_learner(tmp_path / "m", device="cpu", callback=resumed_watch)
        for task in tasks[len(resumed.tasks) - 1 :]:
            resumed.learn(task)
        assert resumed_watch.summaries[-1] == watch.summaries[-1]
        assert not differing_keys(learner_snapshot(whole), learner_snapshot(resumed))


def test_without_patience_all_epochs_are_trained() -> None:
    watch = Watch()
    learner = tiny_learner(callback=watch, specialist__epochs=3)
    learner.learn(validated_tasks()[0])
    assert watch.summaries == [{}]


def test_stratified_rows_draw_classes_equally_and_cover_them() -> None:
    labels = np.repeat([0, 1, 2], [40, 4, 16])
    rows = stratified_rows(labels, np.random.default_rng(0))
    assert [int((labels[rows] == label).sum()) for label in range(3)] == [20, 20, 20]
    times = np.bincount(rows, minlength=60)
    assert set(times[:40]) == {0, 1}  # 20 different ones of 40
    assert set(times[40:44]) == {5}
    assert set(times[44:]) == {1, 2}
    assert np.count_nonzero(np.diff(labels[rows])) > 20  # shuffled: about 40 changes of the class, not two


def test_balanced_specialist_trains_every_class_equally_often() -> None:
    """A task with more images of known classes does not make up more of the epoch than the other classes."""
    learner, stream = tiny_learner(buffer=20, **{**SETTINGS, "specialist__epochs": 1}), tiny_stream(each=12)
    for task in stream:
        learner.learn(task)
    seen: list[int] = []
    loss = type(learner.specialist).loss

    def recording(net: Any, batch: Any, replay_batches: Any) -> Any:
        assert replay_batches == ()
        seen.extend(batch.y.tolist())
        return loss(learner.specialist, net, batch, replay_batches)

    learner.specialist.loss = recording  # type: ignore[method-assign]
    learner.learn(replace(stream.tasks[0], index=2))
    assert np.bincount(seen).tolist() == [11, 11, 11, 11]  # 24 of the task and 20 of the memory
