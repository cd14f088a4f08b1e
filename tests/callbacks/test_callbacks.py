"""Callbacks: hooks, lists of callbacks and checkpointing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import itl
from itl.callbacks import Callback, CallbackList, CheckpointCallback
from support.tiny import tiny_learner, tiny_stream

HOOKS = [name for name in vars(Callback) if name.startswith("on_")]


class RecordingCallback(Callback):
    """Records the hooks that are called."""

    def __init__(self, calls: list[tuple[Any, ...]], name: str) -> None:
        for hook in HOOKS:
            setattr(self, hook, lambda *args, hook=hook: calls.append((name, hook, *args)))


@pytest.mark.parametrize("hook", HOOKS)
def test_callback_list_calls_every_callback_in_order(hook: str) -> None:
    calls: list[tuple[Any, ...]] = []
    getattr(CallbackList([RecordingCallback(calls, "a"), RecordingCallback(calls, "b")]), hook)(1, 2)
    assert calls == [("a", hook, 1, 2), ("b", hook, 1, 2)]


def test_checkpoint_callback_saves_after_rounds_and_tasks(tmp_path: Path) -> None:
    positions: list[tuple[str, int]] = []

    def save(learner: itl.Learner) -> None:
        positions.append(learner.position)
        learner.save(tmp_path / "model")

    learner = tiny_learner("er", callback=CheckpointCallback(save, interval=0))
    learner.learn(tiny_stream().tasks[0])
    assert positions == [("specialist", 1), ("specialist", 2), ("done", 0)]
    assert learner.timer.seconds["saving"] > 0
    assert itl.load(tmp_path / "model", device="cpu").position == ("done", 0)


def test_checkpoint_callback_can_skip_the_end_of_a_task() -> None:
    saved: list[itl.Learner] = []
    learner = tiny_learner("er", callback=CheckpointCallback(saved.append, interval=3600, at_task_end=False))
    learner.learn(tiny_stream().tasks[0])
    assert not saved
