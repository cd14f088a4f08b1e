"""Learner: learning from arrays, growing classifiers, predictions, and errors for invalid input."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from itl import Learner, UserError
from itl.callbacks.base import Callback
from itl.specialists.losses import squared_error
from support.tiny import (
    TINY,
    LambdaCallback,
    differing_keys,
    images_of,
    learner_snapshot,
    tiny_images,
    tiny_learner,
    tiny_stream,
)

GROWING = ["itl", "er", "derpp", "itl-l", "b+hp+ff+pd", "sgd"]


@pytest.mark.parametrize("method", GROWING)
def test_classifier_without_fixed_classes_grows_with_the_tasks(method: str) -> None:
    learner = tiny_learner(method, buffer=12, classes=None)
    widths = []
    for classes in ([0, 1], [2], [3, 4, 5]):
        learner.learn(*images_of(classes))
        widths.append(learner.net.classifier.out_features)
        labels, probabilities = learner.predict(images_of([0])[0]), learner.predict_proba(images_of([0])[0])
        assert probabilities.shape == (10, widths[-1])
        assert (labels < widths[-1]).all()
        np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-5)
        assert (probabilities.argmax(1) == labels).all()
    assert widths == [2, 3, 6]
    assert learner.tasks == [(0, 1), (2,), (3, 4, 5)]
    if learner.memory.size:
        assert set(learner.memory.labels) <= set(range(6))


def test_growing_classifier_keeps_the_weights_of_old_outputs() -> None:
    weights: list[torch.Tensor] = []

    def listen(event: str, learner: Learner, stage: str | None, epoch: int) -> None:
        if event in ("on_task_end", "on_stage_start"):
            weights.append(learner.net.classifier.weight.detach().clone())

    learner = tiny_learner("er", classes=None, callback=LambdaCallback(listen))
    learner.learn(*images_of([0, 1]))
    learner.learn(*images_of([2, 3]))
    before, after = weights[1], weights[2]
    assert (before.shape[0], after.shape[0]) == (2, 4)
    assert torch.equal(after[:2], before)


@pytest.mark.parametrize("method", ["derpp", "itl-l"])
def test_replay_ignores_columns_that_stored_logits_did_not_have(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The values in the columns that stored logits did not have do not matter."""
    ends = []
    for garbage in (0.0, 1e3):
        learner = tiny_learner(method, buffer=10, classes=None, specialist__alpha=0.5)
        learner.learn(*images_of([0, 1]))
        grow = learner.memory.grow_logits

        def grow_dirty(classes: int, grow: Any = grow, learner: Learner = learner, garbage: float = garbage) -> None:
            grow(classes)
            assert learner.memory.logits is not None
            learner.memory.logits[:, 2:] = garbage

        learner.memory.grow_logits = grow_dirty  # type: ignore[method-assign]
        learner.learn(*images_of([2, 3]))
        ends.append({n: t for n, t in learner_snapshot(learner).items() if n.startswith("net.")})
    assert differing_keys(*ends) == set()


def test_derpp_replay_of_narrow_logits_equals_the_loss_on_their_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    from itl.specialists import derpp

    calls: list[tuple[list[int], float, float]] = []

    def recorded_squared_error(
        logits: Tensor, targets: Tensor, how: str, widths: Tensor | None, weights: Tensor | None
    ) -> Tensor:
        value = squared_error(logits, targets, how, widths, weights)
        if widths is not None:
            rows = [(logits[i, :w] - targets[i, :w]).detach() ** 2 for i, w in enumerate(widths.tolist())]
            calls.append((widths.tolist(), value.item(), torch.cat(rows).mean().item()))
        return value

    monkeypatch.setattr(derpp, "squared_error", recorded_squared_error)
    learner = tiny_learner("derpp", buffer=10, classes=None)
    learner.learn(*images_of([0, 1]))
    assert not calls  # all stored logits are as wide as the network
    learner.learn(*images_of([2, 3]))
    assert {w for widths, _, _ in calls for w in widths} == {2, 4}
    assert all(loss == pytest.approx(expected, rel=1e-5) for _, loss, expected in calls)


def test_class_can_return_in_a_later_task() -> None:
    learner = tiny_learner("itl", buffer=9, classes=None)
    learner.learn(*images_of([0, 1]))
    learner.learn(*images_of([1, 2], seed=3))
    assert sorted(np.bincount(learner.memory.labels).tolist()) == [3, 3, 3]
    assert learner.net.classifier.out_features == 3


def test_learning_is_equal_for_all_array_layouts() -> None:
    """The images may be NCHW, NHWC or NHW; arrays or tensors; the labels an array, a tensor or a list."""
    stream = tiny_stream(tasks=1)
    task = stream.tasks[0]
    pixels, labels = task.train.pixels, task.train.labels
    forms: list[tuple[Any, Any]] = [
        (pixels.numpy(), labels.numpy()),
        (pixels, labels),
        (pixels.permute(0, 2, 3, 1).numpy(), labels.tolist()),
        (pixels[:, 0].numpy(), labels.int()),
    ]
    ends = []
    for images, y in forms:
        learner = tiny_learner("er", classes=4)
        learner.learn(images, y)
        ends.append(learner_snapshot(learner))
    assert [differing_keys(ends[0], end) for end in ends[1:]] == [set()] * 3


def test_seed_determines_the_result() -> None:
    def snapshot_for_seed(seed: int) -> dict[str, torch.Tensor]:
        learner = tiny_learner("itl", seed=seed)
        learner.learn(tiny_stream().tasks[0])
        return learner_snapshot(learner)

    assert differing_keys(snapshot_for_seed(0), snapshot_for_seed(0)) == set()
    assert "net.classifier.weight" in differing_keys(snapshot_for_seed(0), snapshot_for_seed(1))


def test_learner_reaches_more_than_chance_accuracy() -> None:
    """With enough steps on an easy problem, replay preserves the first task."""
    stream = tiny_stream(classes=4, tasks=2, each=16)
    epochs = {"specialist__epochs": 12, "tangent__epochs": 16, "projection__epochs": 16}
    learner = tiny_learner("itl", buffer=16, net__name="resnet8", **epochs)
    for task in stream:
        learner.learn(task)
    scores = learner.evaluate(stream)
    assert scores.class_il > 60  # chance is 25
    assert scores.task_il >= scores.class_il
    assert min(score.class_il for score in scores.per_task) > 40


@pytest.mark.parametrize("method", ["itl", "b+hp+ff+pd"])
def test_evaluation_does_not_change_training(method: str) -> None:
    stream = tiny_stream()
    evaluated, unobserved = (
        tiny_learner(method, callback=LambdaCallback(lambda e, lr, s, k: lr.logits(stream.tasks[0].test))),
        tiny_learner(method),
    )
    for task in stream:
        evaluated.learn(task)
        unobserved.learn(task)
    assert differing_keys(learner_snapshot(evaluated), learner_snapshot(unobserved)) == set()
    before = evaluated.net.training
    evaluated.evaluate(stream)
    assert evaluated.net.training == before


def test_evaluation_averages_the_tasks_learned_on_their_test_images() -> None:
    stream, learner = tiny_stream(), tiny_learner("er")
    first, second = stream.tasks
    learner.learn(first)
    scores = learner.evaluate(stream)
    assert len(scores.per_task) == 2
    assert (scores.class_il, scores.task_il) == (scores.per_task[0].class_il, scores.per_task[0].task_il)
    on_train, on_test = learner.evaluate(replace(first, test=first.train)), learner.evaluate(first)
    assert on_test == learner.evaluate(first.test.pixels, first.test.labels)
    assert learner.evaluate(replace(first, test=second.test)).class_il < on_train.class_il


def test_logits_do_not_depend_on_the_other_images() -> None:
    stream, learner = tiny_stream(), tiny_learner()
    learner.learn(stream.tasks[0])
    test = stream.tasks[1].test
    alone = torch.cat([learner.logits(test.take(torch.tensor([k]))) for k in range(len(test))])
    torch.testing.assert_close(alone, learner.logits(test), rtol=1e-4, atol=1e-5)


def test_predictions_of_no_images_are_empty() -> None:
    learner = tiny_learner()
    learner.learn(tiny_stream().tasks[0])
    no_images = np.zeros((0, 8, 8), np.uint8)
    assert learner.predict(no_images).shape == (0,)
    assert learner.predict_proba(no_images).shape == (0, 4)


# ---------------------------------------------------------------------- invalid input


def test_untrained_learner_refuses_to_predict() -> None:
    for use in (lambda lr: lr.predict(tiny_images()[0]), lambda lr: lr.evaluate(tiny_stream())):
        with pytest.raises(UserError, match="learned nothing yet"):
            use(tiny_learner())


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (np.zeros((3, 8, 8), np.int64), [0, 1, 0], "uint8"),
        (np.full((3, 8, 8), 2.0), [0, 1, 0], "floats must be in 0..1"),
        (np.zeros((3, 8, 8), np.uint8), [0, 1], "labels"),
        (np.zeros((3, 8, 8), np.uint8), [0, -1, 0], "0 or more"),
        (np.zeros((3, 8, 8), np.uint8), [0.5, 1.0, 0.0], "labels must be integers"),
        (np.zeros((0, 8, 8), np.uint8), [], "no images"),
        (np.zeros((3, 8, 8), np.uint8), [0, 1, 4], "class 4 does not fit a learner of 4 classes"),
    ],
)
def test_invalid_images_or_labels_are_refused_in_one_line(images: Any, labels: Any, message: str) -> None:
    learner = tiny_learner()
    with pytest.raises(UserError, match=message) as caught:
        learner.learn(images, labels)
    assert "\n" not in str(caught.value)
    assert learner.tasks == []
    learner.learn(*tiny_images(4))  # the learner can still be used


def test_learn_refuses_images_of_another_shape() -> None:
    learner = tiny_learner()
    learner.learn(*tiny_images(2))
    before = learner_snapshot(learner)
    with pytest.raises(UserError, match=r"\[1, 9, 9\], the learner expects \[1, 8, 8\]"):
        learner.learn(np.zeros((4, 9, 9), np.uint8), [2, 3, 2, 3])
    assert differing_keys(learner_snapshot(learner), before) == set()


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        ("itl", {"memory__policy": "none"}, "needs a memory"),
        ("sgd", {"generalist": "tangent", "memory__policy": "none"}, "needs a memory"),
        ("derpp", {"memory__policy": "stratified"}, r"set memory\.policy=reservoir"),
        ("itl", {"tangent__alpha": 1.0}, r"tangent\.alpha needs stored logits"),
        ("itl", {"tangent__layers": 9}, "3 layers"),
        ("itl", {"specialist__name": "derp"}, "Unknown specialist 'derp'. Did you mean 'derpp"),
        ("itl", {"net__name": "resnet9"}, "Unknown backbone 'resnet9'"),
        ("itl", {"augment__task": "imagnet"}, "Unknown AutoAugment policy 'imagnet'. Did you mean 'imagenet"),
    ],
)
def test_contradictory_settings_are_refused_before_training(
    method: str, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        tiny_learner(method, **settings).prepare(tiny_stream().tasks[0])


@pytest.mark.parametrize("device", ["tpu", "meta", "cuda:99x"])
def test_unknown_device_is_refused(device: str) -> None:
    learner = Learner("er", 8, settings=TINY, device=device)
    with pytest.raises(UserError, match=r"(?i)device"):
        learner.prepare(tiny_stream().tasks[0])


@pytest.mark.parametrize("method", ["er", "sgd"])
def test_batches_of_one_image_can_be_learned(method: str) -> None:
    """Batch norm cannot normalize one value per channel, and a deep network reduces 8x8 images to one pixel."""
    images, labels = tiny_images(3, 3)
    learner = tiny_learner(method, classes=3, net__name="resnet10", specialist__batch=1)
    learner.learn(images, labels)
    assert np.isfinite(learner.predict_proba(images)).all()


def test_learner_stopped_within_a_round_refuses_to_learn_and_save(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (64, 8, 8), dtype=np.uint8), np.repeat([0, 1], 32)
    diverging = {
        "net.name": "resnet8",
        "net.width": 4,
        "specialist.lr": 100.0,
        "specialist.epochs": 2,
        "specialist.momentum": 0.99,
    }
    learner = Learner(
        "itl", buffer=8, settings={**diverging, "projection.lr": 100.0, "tangent.lr": 100.0}, device="cpu"
    )
    with pytest.raises(UserError, match="not finite"):
        learner.learn(images, labels)
    for use in (lambda: learner.learn(images, labels), lambda: learner.save(tmp_path / "model")):
        with pytest.raises(UserError, match="stopped in the middle"):
            use()
    assert not (tmp_path / "model").exists()


def test_predict_refuses_images_of_another_shape() -> None:
    rng = np.random.default_rng(0)
    small = {"net.name": "resnet8", "net.width": 4, "specialist.epochs": 1, "generalist": "none"}
    learner = Learner("b", buffer=8, settings=small, device="cpu")
    learner.learn(rng.integers(0, 256, (32, 8, 8), dtype=np.uint8), np.repeat([0, 1], 16))
    with pytest.raises(UserError, match="resize them"):
        learner.predict(rng.integers(0, 256, (2, 16, 16), dtype=np.uint8))


def test_repr_is_one_line_that_shows_method_memory_and_progress() -> None:
    learner = tiny_learner("itl-l")
    assert repr(learner) == "Learner(method='itl-l', buffer=8, seed=0, tasks=0, classes=0, position=('done', 0))"
    learner.learn(tiny_stream().tasks[0])
    assert "tasks=1, classes=2" in repr(learner)


def test_predict_returns_the_labels_of_the_largest_probabilities() -> None:
    learner = tiny_learner()
    learner.learn(tiny_stream().tasks[0])
    images = tiny_images()[0]
    assert (learner.predict(images) == learner.predict_proba(images).argmax(1)).all()


def test_old_names_of_callback_and_timer_work_with_a_warning() -> None:
    callback = Callback()
    with pytest.warns(DeprecationWarning, match="argument observer"):
        learner = Learner("er", 8, device="cpu", observer=callback)  # type: ignore[call-arg]
    with pytest.warns(DeprecationWarning, match=r"Learner.observer is deprecated, use callback"):
        assert learner.observer is callback  # type: ignore[attr-defined]
    with pytest.warns(DeprecationWarning, match=r"Learner.clock is deprecated, use timer"):
        assert learner.clock is learner.timer  # type: ignore[attr-defined]
