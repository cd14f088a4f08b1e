"""The hooks of a specialist: when they are called, and that their state survives an interruption."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import itl
from itl import Learner, UserError, method_catalog
from itl.engine.image_pool import ConcatImageSource
from itl.replay.epoch_plan import balanced_rows
from itl.settings import Rate
from itl.specialists import Batch, Options, Phase, Specialist
from itl.specialists.losses import cross_entropy
from itl.specialists.model_copies import frozen_copy, grow_outputs
from support.tiny import LambdaCallback, differing_keys, learner_snapshot, tiny_learner, tiny_net, tiny_stream


class RecordingOptions(Options):
    pace: Rate = 0.5


class RecordingSpecialist(Specialist):
    """Implements every hook and records the calls."""

    name = "recording"
    Options = RecordingOptions
    num_views = 2

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        self.calls: list[Any] = []
        self.steps = torch.zeros(())

    def on_task_start(self) -> None:
        self.calls.append(("on_task_start", self.context.task, self.context.classes, self.context.past_classes))
        self.model_copies["slow"] = self.model_copies.get("slow") or frozen_copy(self.context.net)
        grow_outputs(self.model_copies["slow"], self.context.net)

    def on_epoch_start(self, index: int) -> None:
        self.calls.append(("on_epoch_start", index))

    def draw_inputs(self, rng: np.random.Generator, steps: int, first: int) -> dict[str, np.ndarray]:
        self.calls.append(("draw_inputs", first))
        return {"coin": rng.random((steps, 2)).astype(np.float32)}

    def loss(self, net: nn.Module, batch: Batch, replay_batches: tuple[Batch, ...]) -> Tensor:
        (other,) = batch.extra_views
        assert other.shape == batch.x.shape
        assert not torch.equal(other, batch.x)
        coin = batch.extra["coin"]
        assert coin.shape == (2,)
        for replay in replay_batches:
            assert replay.slots is not None
            assert torch.equal(replay.y, torch.from_numpy(self.context.memory.slots.label)[replay.slots])
            assert replay.extra_views[0].shape == replay.x.shape
        return coin[0] * cross_entropy(net(batch.x), batch.y) + cross_entropy(net(other), batch.y)

    def transform_gradients(self, grads: list[Tensor]) -> list[Tensor]:
        return [0.5 * g for g in grads]

    def after_step(self, net: nn.Module, batch: Batch, replay_batches: tuple[Batch, ...]) -> None:
        self.steps.add_(1)
        for slow, fast in zip(self.model_copies["slow"].parameters(), net.parameters(), strict=True):
            slow.lerp_(fast, self.options.pace)  # type: ignore[attr-defined]

    def mutable_tensors(self) -> list[Tensor]:
        return [self.steps, *self.model_copies["slow"].parameters()]

    def closing_phase(self) -> Phase:
        from itl.engine.stage import OptimizerConfig

        classifier = dict(self.context.net.classifier.named_parameters())
        return Phase(
            "closing", "both", 2, 8, OptimizerConfig(0.1), self._probe, classifier, training=False, replays=False
        )

    def _probe(self, net: nn.Module, batch: Batch, replay_batches: tuple[Batch, ...]) -> Tensor:
        assert not net.training
        assert replay_batches == ()
        return cross_entropy(net(batch.x), batch.y)

    def on_task_end(self) -> None:
        self.calls.append(("on_task_end", len(self.context.memory)))

    def state_dict(self) -> dict[str, Tensor]:
        return {**super().state_dict(), "steps": self.steps}

    def load_state_dict(self, state: dict[str, Tensor], net: Any) -> None:
        super().load_state_dict(state, net)
        self.steps.copy_(state["steps"])

    def evaluate_logits(self, net: Any, x: Tensor) -> Tensor:
        return self.model_copies["slow"](x)


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(method_catalog.REGISTERED, "recording", RecordingSpecialist)


def recording_learner(**settings: Any) -> Learner:
    own = {"generalist": "none", "memory__policy": "stratified", "specialist__momentum": 0.9, **settings}
    return tiny_learner("er", specialist__name="recording", **own)


def test_hooks_are_called_in_order_once_per_task_or_epoch() -> None:
    learner = recording_learner()
    for task in tiny_stream():
        learner.learn(task)
    assert learner.specialist.calls == [  # type: ignore[attr-defined]
        ("on_task_start", 0, (0, 1), ()),
        ("on_epoch_start", 0),
        ("draw_inputs", 0),
        ("on_epoch_start", 1),
        ("draw_inputs", 3),
        ("on_task_end", 8),
        ("on_task_start", 1, (2, 3), (0, 1)),
        ("on_epoch_start", 0),
        ("draw_inputs", 12),  # 6 of the task, 6 of its closing phase
        ("on_epoch_start", 1),
        ("draw_inputs", 15),
        ("on_task_end", 8),
    ]
    assert learner.specialist.steps == 12  # type: ignore[attr-defined]


@pytest.mark.parametrize("classes", [4, None])
def test_hook_state_survives_an_interruption(classes: int | None, tmp_path: Path) -> None:
    """The learner is saved after every round of the second task and continues from each of these states."""

    def save(event: str, learner: Learner, stage: str | None, done: int) -> None:
        if event == "on_round_end" and len(learner.tasks) == 2:
            learner.save(tmp_path / f"{stage} {done}")

    first, second = tiny_stream().tasks
    uninterrupted = recording_learner(classes=classes, callback=LambdaCallback(save))
    for task in (first, second):
        uninterrupted.learn(task)
    states = sorted(tmp_path.iterdir())
    assert [path.name for path in states] == ["closing 1", "closing 2", "specialist 1", "specialist 2"]
    for state in states:
        again = itl.load(state, device="cpu")
        again.learn(second)
        assert differing_keys(learner_snapshot(again), learner_snapshot(uninterrupted)) == set(), state.name
        assert differing_keys(again.specialist.state_dict(), uninterrupted.specialist.state_dict()) == set(), state.name
        assert torch.equal(again.logits(second.test), uninterrupted.logits(second.test)), state.name


def test_optimizer_uses_transformed_gradients() -> None:
    halved, unchanged = recording_learner(), recording_learner(specialist__lr=0.025)
    task = tiny_stream().tasks[0]
    halved.learn(task)
    plain = RecordingSpecialist.transform_gradients
    try:
        RecordingSpecialist.transform_gradients = Specialist.transform_gradients  # type: ignore[method-assign]
        unchanged.learn(task)
    finally:
        RecordingSpecialist.transform_gradients = plain  # type: ignore[method-assign]
    same = zip(halved.net.parameters(), unchanged.net.parameters(), strict=True)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in same)


def test_specialist_is_evaluated_until_a_generalist_trained_an_expert() -> None:
    stream = tiny_stream()
    alone, expert = recording_learner(), recording_learner(generalist="tangent")
    alone.learn(stream.tasks[0])
    expert.learn(stream.tasks[0])
    x = alone.normalize(stream.tasks[0].test.pixels)
    assert torch.equal(alone.logits(stream.tasks[0].test), alone.specialist.model_copies["slow"](x))
    assert torch.equal(expert.logits(stream.tasks[0].test), expert.net.eval()(x))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"specialist__options__pase": 0.1}, r"Unknown setting 'specialist\.options\.pase'. Did you mean '.*pace"),
        ({"specialist__options__pace": -1}, r"Setting specialist\.options\.pace = -1 is not valid: .*greater than 0"),
        ({"specialist__options__pace": "quick"}, r"specialist\.options\.pace = 'quick' is not valid"),
        ({"specialist__name": "er", "specialist__options__pace": 1.0}, "has no options"),
    ],
)
def test_invalid_option_is_a_user_error_before_training(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        tiny_learner("er", **{"specialist__name": "recording", **settings})
    assert "\n" not in str(caught.value)


def test_options_are_saved_with_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = recording_learner()
    learner.learn(tiny_stream().tasks[0])
    learner.save(tmp_path)
    assert learner.settings.specialist.options == {"pace": 0.5}
    monkeypatch.setitem(RecordingOptions.model_fields, "pace", RecordingOptions.model_fields["pace"])
    monkeypatch.setattr(RecordingOptions.model_fields["pace"], "default", 0.9)
    assert itl.load(tmp_path, device="cpu").settings.specialist.options == {"pace": 0.5}


def test_concatenated_sources_index_all_rows() -> None:
    stream = tiny_stream()
    a, b = (task.train for task in stream)
    both = torch.cat([a.pixels, b.pixels])
    rows = torch.tensor([35, 0, 20, 19, 20, 3])
    assert torch.equal(ConcatImageSource([(a, len(a)), (b, len(b))]).gather(rows), both[rows])
    assert ConcatImageSource([(a, len(a)), (b, len(b))]).gather(rows[:0]).shape == (0, 1, 8, 8)


def test_balanced_rows_draw_every_class_equally_often() -> None:
    labels = np.array([0] * 90 + [1] * 9 + [2])
    drawn = np.concatenate([labels[balanced_rows(labels, np.random.default_rng(k))] for k in range(200)])
    share = np.bincount(drawn) / len(drawn)
    assert np.abs(share - 1 / 3).max() < 0.02  # 20,000 draws: five standard deviations


def test_grow_outputs_adds_new_outputs_and_keeps_old_ones() -> None:
    net, later = tiny_net(classes=2), tiny_net(classes=4, seed=1)
    old = frozen_copy(net)
    grow_outputs(old, later)
    assert torch.equal(old.classifier.weight[:2], net.classifier.weight)
    assert torch.equal(old.classifier.weight[2:], later.classifier.weight[2:])
    assert not any(p.requires_grad for p in old.parameters())
