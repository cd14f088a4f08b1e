"""Tests of batch-norm statistics estimated on the memory, against PyTorch's `update_bn`."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

from itl import Learner
from itl.callbacks.base import Callback
from itl.generalists import batch_norm, estimate_statistics
from itl.learner import load_learner
from itl.learner.stages import memory_context
from support.tiny import differing_keys, learner_snapshot, tiny_learner, tiny_stream

MEMORY: dict[str, Any] = {"tangent__statistics": "memory", "tangent__views": 3}


class AtMemoryUpdate(Callback):
    """Keeps the learner's network, and the one with statistics of the memory, when the specialist has ended."""

    def on_memory_update(self, learner: Learner, task: Any) -> None:
        self.context = memory_context(learner, task.traits)
        self.before, self.after = copy.deepcopy(learner.net), copy.deepcopy(learner.net)
        estimate_statistics(self.after, self.context)


def buffers(net: nn.Module) -> dict[str, Tensor]:
    return {name: t for name, t in net.named_buffers() if "running" in name}


def test_statistics_are_those_of_pytorch_over_the_same_batches() -> None:
    callback = AtMemoryUpdate()
    tiny_learner(callback=callback, buffer=12, **MEMORY).learn(tiny_stream().tasks[0])
    plain = nn.Sequential(nn.BatchNorm2d(callback.before.stem.conv.out_channels))  # PyTorch's own forward pass
    inputs = [callback.context.normalize(images) for images in batch_norm._batches(callback.context)]
    with torch.no_grad():
        update_bn([callback.before.stem.conv(x) for x in inputs], plain)
    torch.testing.assert_close(callback.after.stem.bn.running_mean, plain[0].running_mean)
    torch.testing.assert_close(callback.after.stem.bn.running_var, plain[0].running_var)
    assert len(inputs) == 3
    assert all(len(x) == 12 for x in inputs)
    assert all(not torch.equal(t, buffers(callback.before)[name]) for name, t in buffers(callback.after).items())
    assert callback.after.stem.bn.momentum == callback.before.stem.bn.momentum
    assert all(layer.training for layer in callback.after.modules())  # as after the specialist's training


def test_statistics_come_from_different_augmented_views() -> None:
    callback = AtMemoryUpdate()
    tiny_learner(callback=callback, buffer=12, **MEMORY).learn(tiny_stream().tasks[0])
    first, second, _ = (batch.unbind() for batch in batch_norm._batches(callback.context))
    stored = callback.context.memory.pixels[:12].unbind()
    for views, others in ((first, stored), (second, stored), (first, second)):
        assert any(not any(torch.equal(view, other) for other in others) for view in views)


def test_statistics_do_not_depend_on_those_before() -> None:
    callback = AtMemoryUpdate()
    tiny_learner(callback=callback, **MEMORY).learn(tiny_stream().tasks[0])
    again = copy.deepcopy(callback.after)
    estimate_statistics(again, callback.context)
    assert all(torch.equal(t, buffers(again)[name]) for name, t in buffers(callback.after).items())


def test_frozen_layers_keep_their_statistics() -> None:
    callback = AtMemoryUpdate()
    tiny_learner(callback=callback, **MEMORY).learn(tiny_stream().tasks[0])
    net = copy.deepcopy(callback.before)
    net.stem.bn.requires_grad_(False)
    estimate_statistics(net, callback.context)
    changed = {name for name, t in buffers(net).items() if not torch.equal(t, buffers(callback.before)[name])}
    assert changed == {name for name in buffers(net) if not name.startswith("stem.bn.")}


def test_without_a_projection_the_specialist_is_restored_with_its_statistics() -> None:
    callback = AtMemoryUpdate()
    learner = tiny_learner(callback=callback, project=False, **MEMORY)
    learner.learn(tiny_stream().tasks[0])
    state, before = learner.net.state_dict(), callback.before.state_dict()
    assert all(torch.equal(t, before[name]) for name, t in state.items())


@pytest.mark.parametrize("generalist", ["tangent", "linear", "full"])
def test_generalists_start_from_the_memory_statistics(generalist: str) -> None:
    options = {"generalist": generalist, "tangent__epochs": 1, "project": True}
    learners = [tiny_learner(**options, **more) for more in ({}, MEMORY)]
    for learner in learners:
        learner.learn(tiny_stream().tasks[0])
    assert differing_keys(learner_snapshot(learners[0]), learner_snapshot(learners[1]))


def test_resuming_after_the_half_pipe_gives_the_same_network(tmp_path: Path) -> None:
    class SaveFirst(Callback):
        def on_stage_start(self, learner: Learner, stage: Any) -> None:
            if stage.name == "tangent" and not any(tmp_path.iterdir()):
                learner.save(tmp_path / "saved")

    task = tiny_stream().tasks[0]
    learner = tiny_learner(callback=SaveFirst(), project=False, **MEMORY)
    learner.learn(task)
    resumed = load_learner(tmp_path / "saved", device="cpu")
    resumed.learn(task)
    assert not differing_keys(learner_snapshot(learner), learner_snapshot(resumed))
