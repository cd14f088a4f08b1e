"""The front door: a learner taught from arrays, one that grows, what it answers and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from itl import Learner, UserError
from itl.callbacks.base import Callback
from itl.specialists.losses import squared_error
from itl.streams import Images
from support.tiny import TINY, LambdaCallback, differing_keys, learner_snapshot, tiny_images, tiny_learner, tiny_stream

GROWING = ["itl", "er", "derpp", "itl-l", "b+hp+ff+pd", "sgd"]


def part(classes: list[int], each: int = 10, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """The images and labels of some classes, as NumPy arrays."""
    images, labels = tiny_images(6, each, seed=seed)
    chosen = np.isin(labels, classes)
    return images[chosen], labels[chosen]


@pytest.mark.parametrize("method", GROWING)
def test_a_learner_without_a_number_of_classes_grows_with_what_it_is_taught(method: str) -> None:
    learner = tiny_learner(method, buffer=12, classes=None)
    widths = []
    for classes in ([0, 1], [2], [3, 4, 5]):
        learner.learn(*part(classes))
        widths.append(learner.net.classifier.out_features)
        labels, probabilities = learner.predict(part([0])[0]), learner.predict_proba(part([0])[0])
        assert probabilities.shape == (10, widths[-1])
        assert (labels < widths[-1]).all()
        np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-5)
        assert (probabilities.argmax(1) == labels).all()
    assert widths == [2, 3, 6]
    assert learner.tasks == [(0, 1), (2,), (3, 4, 5)]
    if learner.memory.size:
        assert set(learner.memory.labels) <= set(range(6))


def test_old_outputs_keep_their_weights_when_new_classes_come() -> None:
    kept: list[torch.Tensor] = []

    def listen(event: str, learner: Learner, stage: str | None, epoch: int) -> None:
        if event in ("on_task_end", "on_stage_start"):
            kept.append(learner.net.classifier.weight.detach().clone())

    learner = tiny_learner("er", classes=None, callback=LambdaCallback(listen))
    learner.learn(*part([0, 1]))
    learner.learn(*part([2, 3]))
    before, after = kept[1], kept[2]
    assert (before.shape[0], after.shape[0]) == (2, 4)
    assert torch.equal(after[:2], before)


@pytest.mark.parametrize("method", ["derpp", "itl-l"])
def test_stored_logits_count_only_on_the_columns_they_had(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever stood in the columns that a stored vector did not have changes nothing."""
    ends = []
    for garbage in (0.0, 1e3):
        learner = tiny_learner(method, buffer=10, classes=None, specialist__alpha=0.5)
        learner.learn(*part([0, 1]))
        grow = learner.memory.grow_logits

        def grow_dirty(classes: int, grow: Any = grow, learner: Learner = learner, garbage: float = garbage) -> None:
            grow(classes)
            assert learner.memory.logits is not None
            learner.memory.logits[:, 2:] = garbage

        learner.memory.grow_logits = grow_dirty  # type: ignore[method-assign]
        learner.learn(*part([2, 3]))
        ends.append({n: t for n, t in learner_snapshot(learner).items() if n.startswith("net.")})
    assert differing_keys(*ends) == set()


def test_derpps_replay_of_narrow_logits_is_the_loss_on_their_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    from itl.specialists import derpp

    seen: list[tuple[list[int], float, float]] = []

    def watched(logits: Tensor, targets: Tensor, how: str, widths: Tensor | None, weights: Tensor | None) -> Tensor:
        value = squared_error(logits, targets, how, widths, weights)
        if widths is not None:
            rows = [(logits[i, :w] - targets[i, :w]).detach() ** 2 for i, w in enumerate(widths.tolist())]
            seen.append((widths.tolist(), value.item(), torch.cat(rows).mean().item()))
        return value

    monkeypatch.setattr(derpp, "squared_error", watched)
    learner = tiny_learner("derpp", buffer=10, classes=None)
    learner.learn(*part([0, 1]))
    assert not seen  # all as wide as the network: nothing to leave out
    learner.learn(*part([2, 3]))
    assert {w for widths, _, _ in seen for w in widths} == {2, 4}
    assert all(ours == pytest.approx(by_hand, rel=1e-5) for _, ours, by_hand in seen)


def test_a_class_can_come_back_in_a_later_task() -> None:
    learner = tiny_learner("itl", buffer=9, classes=None)
    learner.learn(*part([0, 1]))
    learner.learn(*part([1, 2], seed=3))
    assert sorted(np.bincount(learner.memory.labels).tolist()) == [3, 3, 3]
    assert learner.net.classifier.out_features == 3


def test_arrays_and_a_streams_tasks_teach_the_same() -> None:
    """Also NHWC and NHW, tensors and lists of labels."""
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


def test_seeds_differ_and_a_seed_repeats() -> None:
    def taught(seed: int) -> dict[str, torch.Tensor]:
        learner = tiny_learner("itl", seed=seed)
        learner.learn(tiny_stream().tasks[0])
        return learner_snapshot(learner)

    assert differing_keys(taught(0), taught(0)) == set()
    assert "net.classifier.weight" in differing_keys(taught(0), taught(1))


def test_a_learner_learns() -> None:
    """Enough steps on an easy problem, and replay keeps the first task."""
    stream = tiny_stream(classes=4, tasks=2, each=16)
    learner = tiny_learner("itl", buffer=16, specialist__epochs=20, tangent__epochs=24, projection__epochs=24)
    for task in stream:
        learner.learn(task)
    scores = learner.evaluate(stream)
    assert scores.class_il > 60  # chance is 25
    assert scores.task_il >= scores.class_il
    assert min(score.class_il for score in scores.per_task) > 40


def test_evaluating_changes_nothing() -> None:
    stream = tiny_stream()
    one, other = (
        tiny_learner(callback=LambdaCallback(lambda e, lr, s, k: lr.logits(stream.tasks[0].test))),
        tiny_learner(),
    )
    for task in stream:
        one.learn(task)
        other.learn(task)
    assert differing_keys(learner_snapshot(one), learner_snapshot(other)) == set()
    before = one.net.training
    one.evaluate(stream)
    assert one.net.training == before


def test_logits_do_not_depend_on_who_else_is_asked() -> None:
    stream, learner = tiny_stream(), tiny_learner()
    learner.learn(stream.tasks[0])
    test = stream.tasks[1].test
    alone = torch.cat([learner.logits(test.take(torch.tensor([k]))) for k in range(len(test))])
    torch.testing.assert_close(alone, learner.logits(test), rtol=1e-4, atol=1e-5)


def test_no_images_have_no_answers() -> None:
    learner = tiny_learner()
    learner.learn(tiny_stream().tasks[0])
    no_images = np.zeros((0, 8, 8), np.uint8)
    assert learner.predict(no_images).shape == (0,)
    assert learner.predict_proba(no_images).shape == (0, 4)


# ---------------------------------------------------------------------- mistakes


def test_what_was_never_taught_cannot_answer() -> None:
    for use in (lambda lr: lr.predict(tiny_images()[0]), lambda lr: lr.evaluate(tiny_stream())):
        with pytest.raises(UserError, match="learned nothing yet"):
            use(tiny_learner())


@pytest.mark.parametrize(
    ("images", "labels", "said"),
    [
        (np.zeros((3, 8, 8)), [0, 1, 0], "uint8"),
        (np.zeros((3, 8, 8), np.uint8), [0, 1], "labels"),
        (np.zeros((3, 8, 8), np.uint8), [0, -1, 0], "0 or more"),
        (np.zeros((3, 8, 8), np.uint8), [0.5, 1.0, 0.0], "labels must be integers"),
        (np.zeros((0, 8, 8), np.uint8), [], "no images"),
        (np.zeros((3, 8, 8), np.uint8), [0, 1, 4], "class 4 does not fit a learner of 4 classes"),
    ],
)
def test_bad_lessons_are_refused_in_one_line(images: Any, labels: Any, said: str) -> None:
    learner = tiny_learner()
    with pytest.raises(UserError, match=said) as caught:
        learner.learn(images, labels)
    assert "\n" not in str(caught.value)
    assert learner.tasks == []
    learner.learn(*tiny_images(4))  # and nothing is spoilt


def test_images_of_another_shape_are_refused() -> None:
    learner = tiny_learner()
    learner.learn(*tiny_images(2))
    before = learner_snapshot(learner)
    with pytest.raises(UserError, match=r"\[1, 9, 9\], the learner's are \[1, 8, 8\]"):
        learner.learn(np.zeros((4, 9, 9), np.uint8), [2, 3, 2, 3])
    assert differing_keys(learner_snapshot(learner), before) == set()


@pytest.mark.parametrize(
    ("method", "settings", "said"),
    [
        ("itl", {"memory__policy": "none"}, "needs a memory"),
        ("sgd", {"generalist": "tangent", "memory__policy": "none"}, "needs a memory"),
        ("derpp", {"memory__policy": "stratified"}, r"set memory\.policy=reservoir"),
        ("itl", {"tangent__alpha": 1.0}, r"tangent\.alpha needs stored logits"),
        ("itl", {"tangent__layers": 9}, "5 layers"),
        ("itl", {"specialist__name": "derp"}, "Unknown specialist 'derp'. Did you mean 'derpp"),
        ("itl", {"net__name": "resnet9"}, "Unknown backbone 'resnet9'"),
        ("itl", {"augment__task": "imagnet"}, "Unknown AutoAugment policy 'imagnet'. Did you mean 'imagenet"),
    ],
)
def test_settings_that_do_not_go_together_are_refused_before_training(
    method: str, settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(UserError, match=said):
        tiny_learner(method, **settings).prepare(tiny_stream().tasks[0])


@pytest.mark.parametrize("device", ["tpu", "meta", "cuda:99x"])
def test_an_unknown_device_is_refused(device: str) -> None:
    learner = Learner("er", 8, settings=TINY, device=device)
    with pytest.raises(UserError, match=r"(?i)device"):
        learner.prepare(tiny_stream().tasks[0])


def test_a_task_whose_last_batch_is_one_image_can_be_learned() -> None:
    """Batch norm cannot normalise one value a channel: at 8x8 a deep network has one pixel left."""
    images, labels = tiny_images(3, 3)
    learner = tiny_learner("er", classes=3, net__name="resnet10", specialist__batch=4)
    learner.learn(images, labels)  # 9 images in batches of 4, 4, 1
    assert isinstance(learner.logits(Images(torch.from_numpy(images), torch.from_numpy(labels))), torch.Tensor)
    alone = tiny_learner("sgd", classes=3, net__name="resnet10", specialist__batch=4)
    alone.learn(images, labels)


def test_a_learner_stopped_within_a_round_refuses_to_go_on_or_to_be_saved(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (64, 8, 8), dtype=np.uint8), np.repeat([0, 1], 32)
    wild = {
        "net.name": "resnet8",
        "net.width": 4,
        "specialist.lr": 100.0,
        "specialist.epochs": 2,
        "specialist.momentum": 0.99,
    }
    learner = Learner("itl", buffer=8, settings={**wild, "projection.lr": 100.0, "tangent.lr": 100.0}, device="cpu")
    with pytest.raises(UserError, match="not finite"):
        learner.learn(images, labels)
    for use in (lambda: learner.learn(images, labels), lambda: learner.save(tmp_path / "model")):
        with pytest.raises(UserError, match="stopped in the middle"):
            use()
    assert not (tmp_path / "model").exists()


def test_images_of_another_shape_are_refused_by_predict() -> None:
    rng = np.random.default_rng(0)
    small = {"net.name": "resnet8", "net.width": 4, "specialist.epochs": 1, "generalist": "none"}
    learner = Learner("b", buffer=8, settings=small, device="cpu")
    learner.learn(rng.integers(0, 256, (32, 8, 8), dtype=np.uint8), np.repeat([0, 1], 16))
    with pytest.raises(UserError, match="bring them to one shape"):
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


def test_old_names_of_the_callback_and_the_timer_still_work() -> None:
    callback = Callback()
    with pytest.warns(DeprecationWarning, match="argument observer"):
        learner = Learner("er", 8, device="cpu", observer=callback)  # type: ignore[call-arg]
    with pytest.warns(DeprecationWarning, match=r"Learner.observer is deprecated, use callback"):
        assert learner.observer is callback  # type: ignore[attr-defined]
    with pytest.warns(DeprecationWarning, match=r"Learner.clock is deprecated, use timer"):
        assert learner.clock is learner.timer  # type: ignore[attr-defined]
