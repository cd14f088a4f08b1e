"""Which tensors each stage changes: Algorithm 1 and every variant of the paper's ablation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from itl import Learner, nets
from itl.callbacks.base import Callback
from itl.engine.keyed_random import torch_generator
from support.tiny import ONE_BLOCK, LambdaCallback, differing_keys, learner_snapshot, tiny_learner, tiny_stream

NET = nets.build(ONE_BLOCK, 4, channels=1, width=4)
PARAMETERS = {f"net.{name}" for name, _ in NET.named_parameters()}
STATISTICS = {f"net.{name}" for name, _ in NET.named_buffers() if name.endswith(("running_mean", "running_var"))}
NAMES = PARAMETERS | STATISTICS
CLASSIFIER = {"net.classifier.weight", "net.classifier.bias"}
MEMORY_TENSORS = {"pixels", "label", "task", "row", "written", "width", "counters"}


class StageSnapshots:
    """Snapshots at every event of the second of two tasks."""

    def __init__(self, method: str, **settings: Any) -> None:
        self.events: list[tuple[str, str | None]] = []
        self.states: list[dict[str, Tensor]] = []
        stream = tiny_stream()
        self.learner = tiny_learner(method, callback=LambdaCallback(self.record), **settings)
        self.learner.learn(stream.tasks[0])
        self.events, self.states = [], []
        self.learner.learn(stream.tasks[1])

    def record(self, event: str, learner: Learner, stage: str | None, epoch: int) -> None:
        if event != "on_round_end":
            self.events.append((event, stage))
            self.states.append(learner_snapshot(learner))

    def at(self, event: str, stage: str | None = None) -> dict[str, Tensor]:
        return self.states[self.events.index((event, stage))]

    def changed(self, stage: str) -> set[str]:
        return differing_keys(self.at("on_stage_start", stage), self.at("on_stage_end", stage))

    def between(self, first: tuple[str, str | None], last: tuple[str, str | None]) -> set[str]:
        return differing_keys(self.at(*first), self.at(*last))


SPECIALIST = PARAMETERS | STATISTICS | {"counters"}
STAGES: dict[str, dict[str, set[str]]] = {
    "b": {"specialist": SPECIALIST},
    "b+ff": {"specialist": SPECIALIST, "full": PARAMETERS | STATISTICS},
    "b+lf": {"specialist": SPECIALIST, "linear": CLASSIFIER},
    "b+hp+lf": {"specialist": SPECIALIST, "linear": CLASSIFIER},
    "b+hp+ff+pd": {"specialist": SPECIALIST, "full": set(), "projection": PARAMETERS | STATISTICS},
    "itl": {"specialist": SPECIALIST, "tangent": set(), "projection": PARAMETERS | STATISTICS},
}


@pytest.mark.parametrize("method", list(STAGES))
def test_stages_of_ablation_variants_change_only_their_tensors(method: str) -> None:
    snapshots = StageSnapshots(method)
    assert [stage for event, stage in snapshots.events if event == "on_stage_start"] == list(STAGES[method])
    for stage, expected in STAGES[method].items():
        assert snapshots.changed(stage) == expected, stage
    # Between stages the memory is updated after the specialist, and then the classifier may be redrawn.
    assert snapshots.between(("on_stage_end", "specialist"), ("on_memory_update", None)) <= MEMORY_TENSORS
    assert "pixels" in snapshots.between(("on_stage_end", "specialist"), ("on_memory_update", None))
    stages = list(STAGES[method])
    if len(stages) > 1:
        redrawn = snapshots.between(("on_memory_update", None), ("on_stage_start", stages[1]))
        assert redrawn == (CLASSIFIER if snapshots.learner.settings.redraws_classifier else set())
    if len(stages) > 2:
        assert snapshots.between(("on_stage_end", stages[1]), ("on_stage_start", stages[2])) == set()
    assert snapshots.between(("on_stage_end", stages[-1]), ("on_task_end", None)) - MEMORY_TENSORS == set()


def test_half_pipe_redraws_the_classifier_and_projection_starts_from_it() -> None:
    """It starts neither from the specialist's classifier nor from the tangent model's."""
    snapshots = StageSnapshots("itl")
    expected = nets.build(ONE_BLOCK, 4, channels=1, width=4)
    expected.reinitialize_classifier(torch_generator(0, 2, "half-pipe"))
    for event in (("on_stage_start", "tangent"), ("on_stage_start", "projection")):
        assert torch.equal(snapshots.at(*event)["net.classifier.weight"], expected.classifier.weight)
        assert snapshots.between(("on_memory_update", None), event) == CLASSIFIER
    assert not torch.equal(snapshots.at("on_memory_update")["net.classifier.weight"], expected.classifier.weight)


@pytest.mark.parametrize("layers", [1, 2, None])
def test_tangent_learning_does_not_change_the_network(layers: int | None) -> None:
    snapshots = StageSnapshots("itl", tangent__layers=layers)
    assert snapshots.changed("tangent") == set()


def test_itl_l_does_not_change_its_reservoir_after_the_specialist() -> None:
    snapshots = StageSnapshots("itl-l")
    assert {"pixels", "logits"} < snapshots.changed("specialist")
    assert snapshots.between(("on_stage_end", "specialist"), ("on_memory_update", None)) == set()
    after = snapshots.between(("on_memory_update", None), ("on_task_end", None))
    assert after <= NAMES


@pytest.mark.parametrize("half_pipe", [True, False])
def test_tangent_without_projection_restores_the_specialist(half_pipe: bool) -> None:
    stream, logits = tiny_stream(), {}

    def record_event(event: str, learner: Learner, stage: str | None, epoch: int) -> None:
        if event in ("on_stage_end", "on_memory_update", "on_task_end"):
            logits[stage or event] = learner.logits(stream.tasks[0].test)

    learner = tiny_learner("itl", project=False, half_pipe=half_pipe, callback=LambdaCallback(record_event))
    learner.learn(stream.tasks[0])
    assert torch.equal(logits["on_task_end"], logits["on_memory_update"])
    assert torch.equal(logits["on_task_end"], logits["specialist"])
    assert not torch.allclose(logits["tangent"], logits["specialist"], atol=1e-3)
    snapshots = StageSnapshots("itl", project=False)
    assert snapshots.between(("on_memory_update", None), ("on_task_end", None)) == set()


def test_logits_in_the_tangent_stage_are_the_tangent_models() -> None:
    """At w = 0 its logits are the network's after the half-pipe; they change while the network's weights do not."""
    stream, logits = tiny_stream(), {}

    def record_event(event: str, learner: Learner, stage: str | None, epoch: int) -> None:
        if stage == "tangent" and event != "on_round_end":
            logits[event] = learner.logits(stream.tasks[0].test)
            logits[f"{event}, net"] = learner.net.eval()(learner.normalize(stream.tasks[0].test.pixels)).detach()

    tiny_learner("itl", callback=LambdaCallback(record_event)).learn(stream.tasks[0])
    torch.testing.assert_close(logits["on_stage_start"], logits["on_stage_start, net"], rtol=1e-5, atol=1e-6)
    assert torch.equal(logits["on_stage_start, net"], logits["on_stage_end, net"])
    assert not torch.allclose(logits["on_stage_end"], logits["on_stage_start"], atol=1e-3)


def test_linear_generalist_uses_the_trunk_in_evaluation_mode() -> None:
    modes: list[bool] = []
    learner = tiny_learner(
        "b+lf", callback=LambdaCallback(lambda e, lr, s, _: s == "linear" and modes.append(lr.net.training))
    )
    learner.learn(tiny_stream().tasks[0])
    assert modes
    assert not any(modes)


@pytest.mark.parametrize("stage", ["tangent", "projection"])
def test_frozen_batch_norm_statistics_do_not_change(stage: str) -> None:
    if stage == "tangent":
        assert StageSnapshots("b+ff", tangent__batch_norm="eval").changed("full") == PARAMETERS
    else:
        assert StageSnapshots("itl", projection__batch_norm="eval").changed("projection") == PARAMETERS


def test_momentum_and_monitor_are_reset_at_every_stage() -> None:
    """A learner that continues with another one's network and memory ends with the same weights."""
    stream = tiny_stream()
    settings = {"specialist__momentum": 0.9, "tangent__momentum": 0.9, "projection__momentum": 0.9}
    settings |= {"specialist__patience": 2, "projection__monitor": True}
    saved_at_start: list[tuple[str, list[str]]] = []

    def record_event(event: str, learner: Learner, stage: str | None, epoch: int) -> None:
        if event == "on_stage_start":
            saved_at_start.append((str(stage), [*learner.stage_state.momentum, *learner.stage_state.monitor]))

    first, second = (tiny_learner("itl", callback=LambdaCallback(record_event), **settings) for _ in range(2))
    first.learn(stream.tasks[0])
    second.prepare(stream.tasks[0])
    second.net.load_state_dict(first.net.state_dict())
    second.memory.pixels.copy_(first.memory.pixels)
    second.memory.slots, second.tasks = first.memory.slots.copy(), list(first.tasks)
    for learner in (first, second):
        learner.learn(stream.tasks[1])
    assert differing_keys(learner_snapshot(first), learner_snapshot(second)) == set()
    assert saved_at_start
    assert all(names == [] for _, names in saved_at_start)


def test_first_step_of_every_stage_does_not_depend_on_momentum() -> None:
    """A stage of one step has the same result with and without momentum."""
    stream = tiny_stream()
    one_step = {"tangent__steps": 1, "projection__steps": 1}
    weights = []
    for momentum in (0.0, 0.9):
        learner = tiny_learner(
            "itl", specialist__momentum=0.9, tangent__momentum=momentum, projection__momentum=momentum, **one_step
        )
        for task in stream:
            learner.learn(task)
        weights.append(learner_snapshot(learner))
    assert differing_keys(*weights) == set()


@pytest.mark.parametrize(("over", "size", "policy"), [("task", 20, "cifar10"), ("memory", 8, None)])
def test_projection_uses_its_images_with_their_augmentation(over: str, size: int, policy: str | None) -> None:
    planners: dict[str, Any] = {}

    class KeepPlanners(Callback):
        def on_stage_start(self, learner: Learner, stage: Any) -> None:
            planners[stage.name] = stage.planner

    settings = {"projection__over": over, "augment__task": "cifar10", "augment__memory": None}
    tiny_learner("itl", callback=KeepPlanners(), **settings).learn(tiny_stream().tasks[0])
    assert planners["projection"].size == size
    assert planners["projection"].augment.policy == policy
    assert (planners["tangent"].size, planners["tangent"].augment.policy) == (8, None)
