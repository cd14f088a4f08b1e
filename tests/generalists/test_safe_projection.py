"""Tests of the projection's settings: softened cross-entropy, teacher of fixed scale, and the monitor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from itl import Learner
from itl.callbacks.base import Callback
from itl.errors import UserError
from itl.generalists import projection_stage
from itl.generalists.projection_monitor import ProjectionMonitor
from itl.learner import load_learner
from itl.learner.stages import make_projection_stage, memory_context
from support.tiny import differing_keys, learner_snapshot, tiny_learner, tiny_stream

# Settings that give large logits, for which the learning rates of the tests below are too high.
FRAGILE: dict[str, Any] = {
    "buffer": 16,
    "tangent__solver": "lbfgs",
    "tangent__views": 4,
    "tangent__l2": 1e-4,
    "half_pipe_scale": 10.0,
    "projection__epochs": 40,
    "projection__momentum": 0.9,
    "specialist__epochs": 4,
}


class Projections(Callback):
    """Keeps the summary of the projection, and saves the learner after one of its rounds."""

    def __init__(self, folder: Path | None = None, save_at: int = 0) -> None:
        self.folder, self.save_at = folder, save_at
        self.summary: dict[str, Any] = {}

    def on_round_end(self, learner: Learner, stage: Any, epoch: int, loss: float) -> None:
        if self.folder is not None and stage.name == "projection" and learner.position[1] == self.save_at:
            learner.save(self.folder)

    def on_stage_end(self, learner: Learner, stage: Any) -> None:
        if stage.name == "projection":
            self.summary = dict(stage.summary)


def memory_accuracy(learner: Learner) -> float:
    """Accuracy of the network in evaluation mode on the memory's images, in percent."""
    with torch.no_grad():
        logits = learner.net.eval()(learner.normalize(learner.memory.pixels[: len(learner.memory)]))
    return 100 * float((logits.argmax(1) == torch.from_numpy(learner.memory.labels)).float().mean())


def projected(**settings: Any) -> tuple[float, dict[str, Any]]:
    """Accuracy on the memory after one task, and the projection's summary."""
    callback = Projections()
    learner = tiny_learner(callback=callback, net__name="resnet8", **{**FRAGILE, **settings})
    learner.learn(tiny_stream(each=20).tasks[0])
    return memory_accuracy(learner), callback.summary


def before_projection(**settings: Any) -> tuple[Learner, Any]:
    """A learner whose generalist has learned, just before the projection, and the task."""
    learner = tiny_learner(**{"buffer": 8, **settings})
    task = tiny_stream().tasks[0]

    class Stop(Exception):
        pass

    class Interrupt(Callback):
        def on_stage_end(self, learner: Learner, stage: Any) -> None:
            if stage.name == "tangent":
                raise Stop

    learner.callback = Interrupt()
    with pytest.raises(Stop):
        learner.learn(task)
    return learner, task


@pytest.mark.parametrize(("solver", "rms"), [("sgd", None), ("lbfgs", None), ("lbfgs", 3.0)])
def test_projection_of_a_linear_classifier_is_exact(solver: str, rms: float | None) -> None:
    """A tangent model of the last layer is a network with other weights, on images outside the memory too."""
    logits: list[Tensor] = []
    stages: list[str] = []
    unseen = torch.randint(0, 256, (6, 1, 8, 8), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)

    class Logits(Callback):
        def on_stage_end(self, learner: Learner, stage: Any) -> None:
            if stage.name == "tangent":
                logits.append(learner._generalist.logits(learner.normalize(unseen)))  # type: ignore[union-attr]
            stages.append(stage.name)

    options = {"tangent__layers": 1, "tangent__solver": solver, "projection__teacher_rms": rms}
    learner = tiny_learner(callback=Logits(), buffer=8, half_pipe=False, **options)
    learner.learn(tiny_stream().tasks[0])
    assert stages == ["specialist", "tangent", "projection"]
    with torch.no_grad():
        expert = learner.net.eval()(learner.normalize(unseen))
    factor = 1.0 if rms is None else float((expert * logits[0]).sum() / logits[0].square().sum())
    torch.testing.assert_close(expert, factor * logits[0], rtol=1e-4, atol=1e-4)
    assert (rms is None) == (factor == 1.0)


def test_kl_is_the_softened_cross_entropy_of_torch() -> None:
    learner, task = before_projection(projection__loss="kl", projection__temperature=3.0)
    assert learner._generalist is not None
    stage = make_projection_stage(learner, task, learner._generalist)
    x = learner.normalize(learner.memory.pixels[:8])
    target = learner._generalist.logits(x)
    learner.net.eval()
    value = stage.loss({"x": x, "target": target})
    softened = (target / 3).softmax(1)
    expected = 9 * F.cross_entropy(learner.net(x) / 3, softened)
    torch.testing.assert_close(value, expected)


def test_teacher_has_the_root_mean_square_of_the_settings() -> None:
    learner, task = before_projection(projection__teacher_rms=3.0)
    assert learner._generalist is not None
    before = learner.net.classifier.weight.detach().clone()
    stages = [make_projection_stage(learner, task, learner._generalist) for _ in range(2)]
    scale = learner.stage_state.generalist["teacher_scale"]
    torch.testing.assert_close(learner.net.classifier.weight, scale * before)  # scaled once, not twice
    logits = scale * learner._generalist.logits(learner.normalize(learner.memory.pixels[:8]))
    rms = (logits - logits.mean(1, keepdim=True)).square().mean().sqrt()
    assert float(rms) == pytest.approx(3.0, rel=1e-5)
    context = memory_context(learner, task.traits)
    data, augment = (learner.memory, len(learner.memory)), context.augment
    plain = projection_stage(learner.net, learner._generalist.logits, context, data, augment)
    scaled, unscaled = (
        next(iter(stage.planner.load(stage.planner.plan(0)))).groups[0]["target"] for stage in (stages[1], plain)
    )
    torch.testing.assert_close(scaled, scale * unscaled)


@pytest.mark.slow
def test_monitor_keeps_what_an_unmonitored_projection_loses() -> None:
    lost, nothing = projected(projection__lr=0.1)
    kept, summary = projected(projection__lr=0.1, projection__monitor=True)
    assert nothing == {}
    assert summary["losses"] > 0
    assert summary["rate"] < 1
    assert kept >= lost + 20


@pytest.mark.slow
def test_monitor_survives_a_loss_that_is_not_finite() -> None:
    with pytest.raises(UserError, match="not finite"):
        projected(projection__lr=0.3)
    kept, summary = projected(projection__lr=0.3, projection__monitor=True)
    assert summary["losses"] > 0
    assert kept >= 75


@pytest.mark.slow
def test_full_fine_tuning_has_the_same_projection() -> None:
    settings = {"generalist": "full", "half_pipe": True, "project": True, "tangent__solver": "sgd"}
    settings |= {"tangent__epochs": 10, "tangent__lr": 0.05, "projection__teacher_rms": 3.0}
    _, summary = projected(projection__loss="kl", projection__monitor=True, **settings)
    assert {"teacher_accuracy", "accuracy", "losses"} <= summary.keys()


@pytest.mark.slow
@pytest.mark.parametrize(("save_at", "rms"), [(1, 3.0), (6, None), (8, None)])
def test_monitored_projection_resumes_exactly(tmp_path: Path, save_at: int, rms: float | None) -> None:
    settings = {**FRAGILE, "projection__lr": 0.1, "projection__monitor": True, "projection__teacher_rms": rms}
    stream = tiny_stream(each=20)
    learner = tiny_learner(callback=Projections(tmp_path, save_at), **settings)
    learner.learn(stream.tasks[0])
    callback = Projections()
    loaded = load_learner(tmp_path, callback=callback)
    assert loaded.position == ("projection", save_at)
    loaded.learn(stream.tasks[0])
    assert not differing_keys(learner_snapshot(learner), learner_snapshot(loaded))
    assert callback.summary == learner.callback.summary  # type: ignore[attr-defined]


def test_monitor_keeps_restores_and_stops_by_accuracy() -> None:
    """A sequence of accuracies decides when weights are kept, restored, and when the stage ends."""
    learner, task = before_projection()
    context = memory_context(learner, task.traits)
    assert learner._generalist is not None
    monitor = ProjectionMonitor(learner.net, learner._generalist.logits, context, {})
    accuracies: list[float] = []
    monitor._accuracy = lambda model: accuracies.pop(0)  # type: ignore[method-assign]
    monitor.teacher_accuracy, monitor.best_accuracy, monitor.peak = 98.0, 50.0, 50.0
    weight = learner.net.classifier.weight

    def after(accuracy: float, value: float, is_last: bool = False) -> bool:
        accuracies.append(accuracy)
        with torch.no_grad():
            weight.fill_(value)
        return monitor.after_round(is_last, 0.0)

    start: Tensor = weight.detach().clone()
    assert [after(60.0, 1.0), after(55.0, 2.0)] == [False, False]  # far below the teacher: progress, then none
    assert after(55.0, 3.0)  # no progress twice: back to the start
    assert torch.equal(weight, start)
    assert monitor.rate == 0.25
    assert [after(58.0, 1.0), after(57.0, 1.0)] == [False, False]  # progress is measured from the start again
    assert not after(97.0, 4.0)  # near the teacher: the best so far
    assert not after(90.0, 5.0)  # some points below it, at a high rate
    assert after(80.0, 6.0)
    assert float(weight.detach().mean()) == 4.0
    assert (monitor.rate, monitor.losses) == (0.0625, 2)
    assert not after(96.5, 7.0, is_last=True)  # within a point: the last weights are kept
    assert after(95.0, 8.0, is_last=True)
    assert float(weight.detach().mean()) == 4.0
    assert after(10.0, 9.0)
    assert monitor.stopped


def test_monitor_measures_normalized_views_in_evaluation_mode() -> None:
    learner, task = before_projection(projection__monitor=True, projection__teacher_rms=3.0)
    generalist, given = learner._generalist, []
    assert generalist is not None
    teach = generalist.logits
    generalist.logits = lambda x: (given.append(x), teach(x))[1]  # type: ignore[method-assign, func-returns-value]
    stage = make_projection_stage(learner, task, generalist)
    assert isinstance(stage.monitor, ProjectionMonitor)
    assert learner.net.training
    monitor, x = stage.monitor, learner.normalize(stage.monitor.images)
    assert torch.equal(given[-1], x)
    assert monitor.labels.tolist() == monitor.labels[:8].tolist() * 8  # eight views of eight images
    with torch.no_grad():
        outputs = (teach(x), learner.net.eval()(x))
    expected = [100 * float((logits.argmax(1) == monitor.labels).double().mean()) for logits in outputs]
    assert [monitor.teacher_accuracy, monitor.accuracy] == pytest.approx(expected)


def test_monitor_continues_from_its_saved_tensors() -> None:
    learner, task = before_projection()
    context, logits = memory_context(learner, task.traits), learner._generalist.logits  # type: ignore[union-attr]
    saved, loaded = (ProjectionMonitor(learner.net, logits, context, {}) for _ in range(2))
    numbers = {"teacher_accuracy": 90.0, "accuracy": 70.0, "best_accuracy": 80.0, "peak": 75.0}
    numbers |= {"rate": 0.25, "losses": 3, "stuck": 1, "stopped": True}
    for name, value in numbers.items():
        setattr(saved, name, value)
    saved.best = {name: t + 1 for name, t in saved.best.items()}
    loaded.load_tensors(saved.tensors())
    assert {name: getattr(loaded, name) for name in numbers} == numbers
    assert not differing_keys(loaded.best, saved.best)
    assert loaded.summary == {name: value for name, value in numbers.items() if name not in ("peak", "stuck")}


def test_augmentation_of_the_generalist_can_differ_from_replay() -> None:
    learner = tiny_learner(augment__memory=None, augment__generalist="cifar10")
    learner.prepare(tiny_stream().tasks[0])
    assert memory_context(learner, learner.traits).augment.policy == "cifar10"
    same = tiny_learner(augment__memory="cifar10")
    same.prepare(tiny_stream().tasks[0])
    assert memory_context(same, same.traits).augment.policy == "cifar10"
    plain = tiny_learner(augment__memory="cifar10", augment__generalist=None)
    plain.prepare(tiny_stream().tasks[0])
    assert memory_context(plain, plain.traits).augment.policy is None
