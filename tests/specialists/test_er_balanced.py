"""`er-balanced` in a task without new classes: its targets, the copy that they need, and an interruption."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import itl
from itl import Learner
from itl.specialists.model_copies import frozen_copy
from support.specialist_batches import C, ce, log_softmax, make_batch, specialist
from support.tiny import LambdaCallback, differing_keys, tiny_net, tiny_stream
from support.tiny_methods import baseline_learner, full_snapshot, save_each_stage


def balanced_learner(consistency: float = 0.5, **settings: Any) -> Learner:
    options = {"consistency": consistency}
    own = {"specialist__name": "er-balanced", "specialist__options": options, "generalist": "none"}
    return baseline_learner("itl", **{**own, **settings})


@pytest.mark.parametrize("consistency", [0.0, 0.3, 1.0])
def test_targets_mix_labels_and_the_previous_networks_probabilities(consistency: float) -> None:
    net = tiny_net(classes=C, dtype=torch.float64).train()
    method = specialist("er-balanced", net, options={"consistency": consistency})
    method.model_copies["previous"] = previous = frozen_copy(tiny_net(classes=C, seed=3, dtype=torch.float64))
    batch = make_batch(5, (0, 1, 2), 0)
    logits, past = net(batch.x), previous(batch.x)
    kept = 0.0
    for a, b in zip(logits.tolist(), past.tolist(), strict=True):
        kept -= sum(math.exp(p) * q for p, q in zip(log_softmax(b), log_softmax(a), strict=True)) / 5
    expected = (1 - consistency) * ce(logits, batch.y, list(range(C))) + consistency * kept
    assert method.loss(net, batch, ()).item() == pytest.approx(expected, abs=1e-10)
    assert batch.outputs is not None
    assert torch.equal(batch.outputs, logits)


def test_only_a_task_without_new_classes_copies_the_network() -> None:
    copies: list[list[str]] = []

    def record_event(event: str, learner: Learner, stage: str | None, done: int) -> None:
        if (event, stage) == ("on_stage_start", "specialist"):
            copies.append(list(learner.specialist.model_copies))

    first, second = tiny_stream().tasks
    learner = balanced_learner(callback=LambdaCallback(record_event))
    for task in (first, second, first, second):
        learner.learn(task)
    assert copies == [[], [], ["previous"], ["previous"]]
    assert learner.specialist.state_dict() == {}


def test_a_network_consistent_with_the_previous_one_changes_less() -> None:
    first, second = tiny_stream().tasks
    changes = []
    for consistency in (0.0, 1.0):
        learner = balanced_learner(consistency)
        for task in (first, second):
            learner.learn(task)
        before = learner.logits(second.test).softmax(1)
        learner.learn(first)
        changes.append((learner.logits(second.test).softmax(1) - before).abs().mean().item())
    assert changes[1] < changes[0]


def test_task_without_new_classes_resumes_exactly(tmp_path: Path) -> None:
    task = tiny_stream().tasks[0]
    learner = balanced_learner(callback=save_each_stage(tmp_path))
    for _ in range(2):
        learner.learn(task)
    again = itl.load(tmp_path / "specialist", device="cpu")
    assert "previous" in again.specialist.model_copies
    again.learn(task)
    assert differing_keys(full_snapshot(again), full_snapshot(learner)) == set()
