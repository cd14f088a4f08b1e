"""Batch splitting: no tiny last batch, and the same step counts everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from itl.callbacks.base import Callback
from itl.engine.batches import batch_sizes, num_batches, num_samples
from itl.engine.stage import Stage
from itl.learner import Learner, load_learner
from itl.learner.stage_estimate import GENERALIST, estimate_stages
from support.tiny import differing_keys, learner_snapshot, tiny_learner, tiny_stream


def test_small_remainders_join_the_previous_batch() -> None:
    assert {n: batch_sizes(n, 8).tolist() for n in (1, 3, 8, 9, 11, 12, 16, 19, 20)} == {
        1: [1],
        3: [3],
        8: [8],
        9: [9],
        11: [11],
        12: [8, 4],
        16: [8, 8],
        19: [8, 11],
        20: [8, 8, 4],
    }
    assert batch_sizes(5, 2).tolist() == [2, 3]


@pytest.mark.parametrize("batch", [1, 2, 3, 8, 32])
def test_batch_sizes_cover_every_sample_once(batch: int) -> None:
    for samples in range(1, 100):
        sizes = batch_sizes(samples, batch)
        assert (sizes.sum(), len(sizes)) == (samples, num_batches(samples, batch))
        assert [num_samples(samples, batch, k) for k in range(len(sizes) + 2)] == [*[0, *sizes.cumsum()], samples]
        assert (sizes[:-1] == batch).all()
        if samples >= 4 and batch >= 4:
            assert sizes.min() >= 4
        if samples % batch == 0 or samples % batch >= 4:  # no remainder to merge
            assert sizes.tolist() == [len(part) for part in torch.arange(samples).split(batch)]


class StepCounter(Callback):
    """Records the number of steps of every stage."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def on_stage_end(self, learner: Learner, stage: Stage) -> None:
        self.steps.append(stage.planner.total_steps)


@pytest.mark.parametrize("limits", [{}, {"specialist__steps": 3, "tangent__steps": 4}, {"specialist__steps": 1}])
def test_estimated_steps_equal_the_steps_taken(limits: dict[str, Any]) -> None:
    """18 images, two epochs: batches of 8 and 10; on the memory 4, 4, 4 and 6."""
    counter, stream = StepCounter(), tiny_stream(each=9)
    learner = tiny_learner("itl", buffer=18, callback=counter, **limits)
    for task in stream:
        learner.learn(task)
    estimates = [estimate for k in (1, 2) for estimate in estimate_stages(learner.settings, k, 18, 18 * (k - 1), 18)]
    assert [estimate.stage for estimate in estimates[:3]] == ["specialist", GENERALIST, "projection"]
    assert [estimate.steps for estimate in estimates] == counter.steps
    if not limits:
        assert counter.steps[:3] == [2 * 2, 4 * 2, 4 * 2]


@pytest.mark.parametrize("method", ["er", "der", "itl", "gdumb", "metasp", "co2l", "icarl", "gss", "x-der", "cls-er"])
def test_no_stage_trains_on_a_tiny_batch(method: str) -> None:
    """Batch norm over one image at the end of an epoch can ruin the network's predictions."""
    stream = tiny_stream(each=9)
    learner = tiny_learner(method, buffer=18)
    learner.prepare(stream.tasks[0])
    sizes: list[int] = []
    first = next(module for module in learner.net.modules() if not list(module.children()))
    first.register_forward_pre_hook(lambda layer, given: sizes.append(len(given[0])) if layer.training else None)
    for task in stream:
        learner.learn(task)
    assert sizes
    assert min(sizes) >= 4


def test_resuming_a_task_with_a_merged_last_batch_is_exact(tmp_path: Path) -> None:
    stream, stops = tiny_stream(each=9), []

    class SaveEveryRound(Callback):
        def on_round_end(self, learner: Learner, stage: Stage, epoch: int, loss: float) -> None:
            stops.append(tmp_path / f"{len(stops)}")
            learner.save(stops[-1])

    learner = tiny_learner("itl-l", buffer=18, callback=SaveEveryRound())
    learner.learn(stream.tasks[0])
    assert len(stops) >= 6  # two rounds of each of the three stages
    for path in stops:
        again = load_learner(path, device="cpu")
        again.learn(stream.tasks[0])
        assert differing_keys(learner_snapshot(again), learner_snapshot(learner)) == set()
