"""Tests of memory policies in a learner: contents, resuming after an interruption, error messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import itl
from itl import Learner, UserError
from itl.engine.keyed_random import generator
from itl.generalists.context import MemoryTargets
from itl.learner.stages import memory_context
from itl.memory import Slots
from itl.memory.greedy_selection import herding
from itl.memory.policies.stratified import Stratified
from itl.replay.round_planner import ReplayRoundPlanner
from itl.specialists import Batch
from itl.specialists.er import ER
from support.tiny import (
    LambdaCallback,
    assert_slots_hold_their_images,
    differing_keys,
    learner_snapshot,
    tiny_learner,
    tiny_stream,
)

POLICIES: dict[str, dict[str, Any]] = {
    "ring": {},
    "herding": {},
    "entropy": {"memory__temperature": 2.0},
    "coreset": {"memory__fraction": 0.4, "memory__every": 2},
}


def learner_with(
    policy: str, method: str = "itl", buffer: int = 7, classes: int | None = 6, **settings: Any
) -> Learner:
    options = {"tangent__steps": 2, "projection__steps": 2, "specialist__epochs": 3, **POLICIES[policy]}
    return tiny_learner(method, buffer, classes, memory__policy=policy, **{**options, **settings})


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("method", ["itl", "derpp"])
def test_slots_match_their_images_classes_and_tasks(policy: str, method: str) -> None:
    if (policy, method) == ("herding", "derpp"):
        pytest.skip("DER++ stores logits step by step")
    stream = tiny_stream(classes=6, tasks=3, each=9)
    learner = learner_with(policy, method)
    for task in stream:
        learner.learn(task)
        slots = learner.memory.slots
        assert slots.count == 7
        assert_slots_hold_their_images(learner, stream)
        counts = np.bincount(learner.memory.labels)
        assert counts[counts > 0].max() - counts[counts > 0].min() <= 1
        assert len({(t, r) for t, r in zip(slots.task, slots.row, strict=True)}) == 7


@pytest.mark.parametrize("policy", POLICIES)
def test_interrupted_task_ends_with_the_same_memory(policy: str, tmp_path: Path) -> None:
    """Interrupted after each epoch: also between two coresets, and after the last one, before the memory is updated."""
    stream = tiny_stream(classes=6, tasks=3, each=9)

    def save_each_epoch(event: str, learner: Learner, stage: str | None, epoch: int) -> None:
        if (event, stage, len(learner.tasks)) == ("on_round_end", "specialist", 2):
            learner.save(tmp_path / str(epoch))

    uninterrupted = learner_with(policy, callback=LambdaCallback(save_each_epoch))
    for task in stream.tasks[:2]:
        uninterrupted.learn(task)
    for epoch in (1, 2, 3):
        again = itl.load(tmp_path / str(epoch), device="cpu")
        again.learn(stream.tasks[1])
        assert not differing_keys(learner_snapshot(uninterrupted), learner_snapshot(again)), epoch


def test_herding_uses_the_specialists_features_and_evicts_the_last() -> None:
    task, second = tiny_stream(each=12).tasks
    learner = learner_with("herding", "b", buffer=8, classes=4)
    learner.learn(task)
    net, labels = learner.net.eval(), task.train.labels
    with torch.no_grad():
        features = F.normalize(net.features(learner.normalize(task.train.gather(torch.arange(len(labels))))))
    for label in (0, 1):
        rows = torch.nonzero(labels == label).flatten()
        expected = rows[herding(features[rows], 4)].tolist()
        assert learner.memory.slots.row[learner.memory.slots.label == label].tolist() == expected
    before = learner.memory.slots.copy()
    learner.learn(second)
    for label in (0, 1):
        now, earlier = (slots.row[slots.label == label].tolist() for slots in (learner.memory.slots, before))
        assert now == earlier[:2]


def test_every_task_has_its_own_draw_for_the_memory() -> None:
    stream, slots = tiny_stream(), Slots.empty(8)
    learner = tiny_learner("b", seed=3)
    for number, task in enumerate(stream, 1):
        learner.learn(task)
        labels = task.train.labels.numpy()
        targets, rows = Stratified().select_at_task_end(slots, labels, generator(3, number, "memory"))
        slots.write(targets, labels[rows], number - 1, rows, 4)
        assert learner.memory.slots.row.tolist() == slots.row.tolist()
        assert learner.memory.slots.task.tolist() == slots.task.tolist()


def test_coreset_weights_are_stored_saved_and_used(tmp_path: Path) -> None:
    stream = tiny_stream(classes=4, tasks=2, each=20)
    learner = learner_with("coreset", classes=4, buffer=6, memory__fraction=0.2)
    learner.learn(stream.tasks[0])
    weights = learner.memory.slots.weight.copy()
    assert len(set(weights)) > 1
    learner.save(tmp_path)
    assert np.array_equal(itl.load(tmp_path, device="cpu").memory.slots.weight, weights)
    recorded: list[Batch] = []
    plain = ER.loss

    def recorded_loss(self: ER, net: Any, batch: Batch, replay_batches: tuple[Batch, ...]) -> torch.Tensor:
        loss = plain(self, net, batch, replay_batches)
        recorded.extend(replay_batches)
        replay, n = replay_batches[0], len(batch.y)
        assert replay.outputs is not None
        assert replay.weights is not None
        assert batch.outputs is not None
        losses = F.cross_entropy(
            torch.cat([batch.outputs, replay.outputs]), torch.cat([batch.y, replay.y]), reduction="none"
        )
        expected = (losses[:n].sum() + (losses[n:] * replay.weights / replay.weights.mean()).sum()) / len(losses)
        assert torch.allclose(loss.detach(), expected)
        return loss

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ER, "loss", recorded_loss)
        learner.learn(stream.tasks[1])
    for replay in recorded:
        assert replay.slots is not None
        assert torch.equal(replay.weights, torch.from_numpy(weights)[replay.slots])  # type: ignore[arg-type]


@pytest.mark.parametrize("weighted", [True, False])
def test_weights_reach_specialist_and_generalist_unless_disabled(
    weighted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, replayed = tiny_stream(), []
    learner = learner_with("coreset", classes=4, memory__weights=weighted)
    learner.learn(stream.tasks[0])
    assert learner.memory.weighted == weighted
    targets = MemoryTargets(memory_context(learner, learner.traits))(torch.tensor([4, 1]))
    assert targets["y"].tolist() == learner.memory.slots.label[[4, 1]].tolist()
    if weighted:
        assert targets["weight"].tolist() == learner.memory.slots.weight[[4, 1]].tolist()
    else:
        assert "weight" not in targets
    loss = learner.specialist.loss
    monkeypatch.setattr(learner.specialist, "loss", lambda *args: (replayed.extend(args[2]), loss(*args))[1])
    learner.learn(stream.tasks[1])
    assert replayed
    assert all((replay.weights is not None) == weighted for replay in replayed)


@pytest.mark.parametrize("policy", ["stratified", "herding"])
def test_logits_stored_at_the_tasks_end_are_the_specialists(policy: str) -> None:
    task = tiny_stream().tasks[0]
    learner = tiny_learner("b", memory__policy=policy, memory__logits=True)
    learner.learn(task)
    rows = torch.from_numpy(learner.memory.slots.row)
    expected = learner.logits(task.train)[rows]
    assert learner.memory.logits is not None
    assert torch.allclose(learner.memory.logits[:-1], expected, atol=1e-5)


def test_candidates_keep_their_logits() -> None:
    kept: list[torch.Tensor] = []

    def keep_logits(event: str, learner: Learner, stage: str | None, epoch: int) -> None:
        if event == "on_round_end" and learner.memory.candidates is not None:
            assert learner.memory.candidates.logits is not None
            kept.append(learner.memory.candidates.logits.clone())

    learner = learner_with("entropy", "derpp", classes=4, callback=LambdaCallback(keep_logits))
    learner.learn(tiny_stream().tasks[0])
    assert learner.memory.logits is not None
    assert (learner.memory.logits[:7].abs().sum(1) > 0).all()
    assert torch.equal(learner.memory.logits[:7], kept[-1][learner.memory.slots.row])


@pytest.mark.parametrize("policy", ["reservoir", "ring", "loss-aware"])
@pytest.mark.parametrize("method", ["er", "sgd", "agem", "er-ace", "cls-er", "lwf"])
def test_logits_stored_in_a_step_belong_to_the_image_in_the_slot(
    method: str, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for methods that do not store logits themselves."""
    learner = tiny_learner(method, classes=4, memory__policy=policy, memory__logits=True)
    stream, outputs = tiny_stream(), []
    learner.prepare(stream.tasks[0])
    loss, plan = learner.specialist.loss, ReplayRoundPlanner.plan
    rows: list[np.ndarray] = []  # of each step's batch, in order

    def recorded_plan(self: ReplayRoundPlanner, index: int) -> Any:
        out = plan(self, index)
        rows.extend(np.split(out.replay.rows, np.cumsum(out.replay.batch)[:-1]))
        return out

    def recorded_loss(net: Any, batch: Batch, replay_batches: tuple[Batch, ...]) -> torch.Tensor:
        value = loss(net, batch, replay_batches)
        assert batch.outputs is not None
        outputs.append(batch.outputs.detach().clone())
        return value

    monkeypatch.setattr(ReplayRoundPlanner, "plan", recorded_plan)
    monkeypatch.setattr(learner.specialist, "loss", recorded_loss)
    for task in stream:
        learner.learn(task)
    slots = learner.memory.slots
    assert learner.memory.logits is not None
    assert set(slots.task) == {0, 1}
    for slot in range(slots.count):
        step = slots.written[slot] - 1
        (index,) = np.flatnonzero(rows[step] == slots.row[slot])
        assert torch.equal(learner.memory.logits[slot], outputs[step][index])


def test_reverse_design_stores_logits_of_the_projected_specialist() -> None:
    stream, recorded = tiny_stream(), []

    def check_logits(event: str, learner: Learner, stage: str | None, epoch: int) -> None:
        if event == "on_memory_update":
            current = np.flatnonzero(learner.memory.slots.task == len(learner.tasks) - 1)
            logits = learner.logits(stream.tasks[len(learner.tasks) - 1].train)[learner.memory.slots.row[current]]
            assert learner.memory.logits is not None
            assert torch.allclose(learner.memory.logits[current], logits, atol=1e-5)
            recorded.append(len(current))

    learner = tiny_learner(
        "itl-l", design="reverse", memory__policy="stratified", callback=LambdaCallback(check_logits)
    )
    for task in stream:
        learner.learn(task)
    assert recorded == [8, 4]


MISTAKES: dict[str, tuple[str, dict[str, Any], str]] = {
    "no logits": ("derpp", {"memory__logits": False}, r"replays stored logits.*memory\.logits=false.*set it to true"),
    "no step": ("derpp", {"memory__policy": "herding"}, r"stores logits step by step; set memory\.policy=reservoir"),
    "no weights": ("itl", {"memory__weights": True}, r"stratified does not; set it to false"),
    "no alpha": ("itl", {"tangent__alpha": 1.0}, r"tangent\.alpha needs stored logits.*set memory\.logits=true"),
    "reverse": ("itl-l", {"design": "reverse"}, r"design=reverse computes no predictions.*memory\.policy=stratified"),
    "reverse, by entropy": ("itl", {"design": "reverse", "memory__policy": "entropy"}, r"computes no predictions"),
    "reverse, by loss": ("itl", {"design": "reverse", "memory__policy": "loss-aware"}, r"computes no predictions"),
    "present": ("x-der", {"memory__policy": "reservoir"}, r"past tasks' images only.*set memory\.policy=stratified"),
    "unknown": ("itl", {"memory__policy": "entropi"}, r"entropi.*entropy"),
    "fraction": ("itl", {"memory__fraction": 1.5}, r"memory\.fraction = 1\.5 is not valid"),
    "temperature": ("itl", {"memory__temperature": 0.0}, r"memory\.temperature = 0\.0 is not valid"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_invalid_memory_settings_are_reported_with_the_remedy(mistake: str) -> None:
    method, settings, message = MISTAKES[mistake]
    with pytest.raises(UserError, match=message) as error:
        tiny_learner(method, **settings).learn(tiny_stream().tasks[0])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("policy", POLICIES)
def test_memory_too_small_for_its_classes_is_rejected(policy: str) -> None:
    learner = learner_with(policy, buffer=3)
    learner.learn(tiny_stream(classes=6, tasks=3).tasks[0])
    with pytest.raises(UserError, match=r"a buffer of 3 cannot hold one image of each of 4 classes; use --buffer 4"):
        learner.learn(tiny_stream(classes=6, tasks=3).tasks[1])


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("entropy", r"needs the specialist's logits.*set memory\.policy="),
        ("ring", r"memory\.logits=true stores the specialist's logits.*set memory\.policy=stratified"),
    ],
)
def test_specialist_without_logits_is_reported(policy: str, message: str) -> None:
    class WithoutLogits(ER):
        def loss(self, net: Any, batch: Batch, replay_batches: tuple[Batch, ...]) -> torch.Tensor:
            value = super().loss(net, batch, replay_batches)
            batch.outputs = None
            return value

    learner = learner_with(policy, classes=4, memory__logits=policy == "ring")
    learner.prepare(tiny_stream().tasks[0])
    learner.specialist = WithoutLogits(learner.settings.specialist)
    with pytest.raises(UserError, match=message):
        learner.learn(tiny_stream().tasks[0])
