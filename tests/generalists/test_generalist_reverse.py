"""Tests of the reverse design: a specialist on the tangent plane, a generalist fine-tuned on the memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import itl
from itl import Learner, UserError
from itl.generalists import TangentModel
from support.tiny import LambdaCallback, differing_keys, learner_snapshot, tiny_learner, tiny_stream


def reverse(**settings: Any) -> Learner:
    return tiny_learner("itl", design="reverse", **settings)


def test_specialist_changes_only_w_and_projection_the_network() -> None:
    at: dict[str, dict[str, torch.Tensor]] = {}
    logits: dict[str, torch.Tensor] = {}
    test = tiny_stream().tasks[1].test

    def take(event: str, learner: Learner, stage: str | None, epoch: int) -> None:
        if event in ("on_stage_start", "on_stage_end") and len(learner.tasks) == 2:
            at[f"{event} {stage}"] = learner_snapshot(learner)
            logits[f"{event} {stage}"] = learner.logits(test)

    learner = reverse(callback=LambdaCallback(take))
    for task in tiny_stream():
        learner.learn(task)
    assert [key for key in at if key.startswith("on_stage_end")] == [
        "on_stage_end specialist",
        "on_stage_end closing",
        "on_stage_end full",
    ]
    assert differing_keys(at["on_stage_start specialist"], at["on_stage_end specialist"]) == {
        "counters"
    }  # θ is unchanged
    assert not torch.equal(logits["on_stage_start specialist"], logits["on_stage_end specialist"])  # w changed
    assert "net.stem.conv.weight" in differing_keys(at["on_stage_start closing"], at["on_stage_end closing"])
    assert len(learner.memory) == 8


def test_specialist_learns_the_task_on_the_tangent_plane() -> None:
    accuracy: dict[str, float] = {}
    stream = tiny_stream(each=30)

    def score(event: str, learner: Learner, stage: str | None, epoch: int) -> None:
        if event in ("on_stage_start", "on_stage_end") and len(learner.tasks) == 2:
            task = stream.tasks[1].train
            accuracy[f"{event} {stage}"] = float((learner.logits(task).argmax(1) == task.labels).float().mean())

    settings = {"net__name": "resnet8", "specialist__epochs": 10, "tangent__lr": 0.05}
    learner = reverse(callback=LambdaCallback(score), **settings)
    for task in stream:
        learner.learn(task)
    assert accuracy["on_stage_end specialist"] > 0.85 > accuracy["on_stage_start specialist"]


def test_tangent_model_is_never_in_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[bool, torch.dtype]] = []
    forward = TangentModel.__call__

    def watched(self: TangentModel, w: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        calls.append((torch.is_autocast_enabled("cpu"), x.dtype))
        return forward(self, w, x)

    monkeypatch.setattr(TangentModel, "__call__", watched)
    learner = reverse(precision="bf16")
    for task in tiny_stream():
        learner.learn(task)
    assert set(calls) == {(False, torch.float32)}


@pytest.mark.parametrize(("stage", "epoch"), [("specialist", 1), ("closing", 1), ("full", 1)])
def test_interrupted_task_resumes_exactly(stage: str, epoch: int, tmp_path: Path) -> None:
    stream = tiny_stream()

    def keep(event: str, learner: Learner, name: str | None, at: int) -> None:
        if (event, name, at, len(learner.tasks)) == ("on_round_end", stage, epoch, 2):
            learner.save(tmp_path)

    whole = reverse(callback=LambdaCallback(keep))
    for task in stream:
        whole.learn(task)
    again = itl.load(tmp_path, device="cpu")
    again.learn(stream.tasks[1])
    assert not differing_keys(learner_snapshot(whole), learner_snapshot(again))


def test_reverse_design_rejects_a_half_pipe() -> None:
    with pytest.raises(UserError, match="design=reverse has no half-pipe"):
        reverse(half_pipe=True)
