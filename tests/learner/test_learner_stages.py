"""What each stage changes, and nothing else: Algorithm 1 and every rung of the paper's ablation, tensor by tensor."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from itl import Learner, nets
from itl.engine.keyed_random import torch_generator
from support.tiny import LambdaCallback, differing_keys, learner_snapshot, tiny_learner, tiny_net, tiny_stream

NET = nets.build("resnet8", 4, channels=1, width=4)
PARAMETERS = {f"net.{name}" for name, _ in NET.named_parameters()}
STATISTICS = {f"net.{name}" for name, _ in NET.named_buffers() if name.endswith(("running_mean", "running_var"))}
NAMES = PARAMETERS | STATISTICS
CLASSIFIER = {"net.classifier.weight", "net.classifier.bias"}
KEPT_BY_MEMORY = {"pixels", "label", "task", "row", "written", "width", "counters"}


class Album:
    """A photograph at every event of learning two tasks; those of the second are what is looked at."""

    def __init__(self, method: str, **settings: Any) -> None:
        self.events: list[tuple[str, str | None]] = []
        self.photographs: list[dict[str, Tensor]] = []
        stream = tiny_stream()
        self.learner = tiny_learner(method, callback=LambdaCallback(self.take), **settings)
        self.learner.learn(stream.tasks[0])
        self.events, self.photographs = [], []
        self.learner.learn(stream.tasks[1])

    def take(self, event: str, learner: Learner, stage: str | None, epoch: int) -> None:
        if event != "on_round_end":
            self.events.append((event, stage))
            self.photographs.append(learner_snapshot(learner))

    def at(self, event: str, stage: str | None = None) -> dict[str, Tensor]:
        return self.photographs[self.events.index((event, stage))]

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
def test_each_rung_of_the_ablation_trains_what_it_says_and_nothing_else(method: str) -> None:
    album = Album(method)
    assert [stage for event, stage in album.events if event == "on_stage_start"] == list(STAGES[method])
    for stage, expected in STAGES[method].items():
        assert album.changed(stage) == expected, stage
    # Between stages: the memory chooses after the specialist; then the classifier is redrawn, or nothing happens.
    assert album.between(("on_stage_end", "specialist"), ("on_memory_update", None)) <= KEPT_BY_MEMORY
    assert "pixels" in album.between(("on_stage_end", "specialist"), ("on_memory_update", None))
    stages = list(STAGES[method])
    if len(stages) > 1:
        jump = album.between(("on_memory_update", None), ("on_stage_start", stages[1]))
        assert jump == (CLASSIFIER if album.learner.settings.redraws_classifier else set())
    if len(stages) > 2:
        assert album.between(("on_stage_end", stages[1]), ("on_stage_start", stages[2])) == set()
    assert album.between(("on_stage_end", stages[-1]), ("on_task_end", None)) - KEPT_BY_MEMORY == set()


def test_the_half_pipe_is_a_fresh_classifier_and_projection_starts_there() -> None:
    """Not at the specialist's classifier, and not at the tangent model's."""
    album = Album("itl")
    fresh = tiny_net(classes=4)
    fresh.reinitialize_classifier(torch_generator(0, 2, "half-pipe"))
    for event in (("on_stage_start", "tangent"), ("on_stage_start", "projection")):
        assert torch.equal(album.at(*event)["net.classifier.weight"], fresh.classifier.weight)
        assert album.between(("on_memory_update", None), event) == CLASSIFIER
    assert not torch.equal(album.at("on_memory_update")["net.classifier.weight"], fresh.classifier.weight)


@pytest.mark.parametrize("layers", [1, 2, None])
def test_tangent_learning_leaves_weights_and_statistics_alone_over_any_layers(layers: int | None) -> None:
    album = Album("itl", tangent__layers=layers)
    assert album.changed("tangent") == set()


def test_itl_l_keeps_its_reservoir_still_after_the_specialist() -> None:
    album = Album("itl-l")
    assert {"pixels", "logits"} < album.changed("specialist")
    assert album.between(("on_stage_end", "specialist"), ("on_memory_update", None)) == set()
    after = album.between(("on_memory_update", None), ("on_task_end", None))
    assert after <= NAMES


@pytest.mark.parametrize("half_pipe", [True, False])
def test_tangent_without_projection_reports_itself_and_leaves_the_specialist(half_pipe: bool) -> None:
    stream, said = tiny_stream(), {}

    def listen(event: str, learner: Learner, stage: str | None, epoch: int) -> None:
        if event in ("on_stage_end", "on_memory_update", "on_task_end"):
            said[stage or event] = learner.logits(stream.tasks[0].test)

    learner = tiny_learner("itl", project=False, half_pipe=half_pipe, callback=LambdaCallback(listen))
    learner.learn(stream.tasks[0])
    assert torch.equal(said["on_task_end"], said["on_memory_update"])
    assert torch.equal(said["on_task_end"], said["specialist"])
    assert not torch.allclose(said["tangent"], said["specialist"], atol=1e-3)
    album = Album("itl", project=False)
    assert album.between(("on_memory_update", None), ("on_task_end", None)) == set()


def test_the_tangent_stage_speaks_for_the_tangent_model() -> None:
    """At its start it is the half-piped network (w = 0), and it moves away from it though the weights do not."""
    stream, said = tiny_stream(), {}

    def listen(event: str, learner: Learner, stage: str | None, epoch: int) -> None:
        if stage == "tangent" and event != "on_round_end":
            said[event] = learner.logits(stream.tasks[0].test)
            said[f"{event}, net"] = learner.net.eval()(learner.normalize(stream.tasks[0].test.pixels)).detach()

    tiny_learner("itl", callback=LambdaCallback(listen)).learn(stream.tasks[0])
    torch.testing.assert_close(said["on_stage_start"], said["on_stage_start, net"], rtol=1e-5, atol=1e-6)
    assert torch.equal(said["on_stage_start, net"], said["on_stage_end, net"])
    assert not torch.allclose(said["on_stage_end"], said["on_stage_start"], atol=1e-3)


def test_a_linear_generalist_sees_the_trunk_in_evaluation_mode() -> None:
    modes: list[bool] = []
    learner = tiny_learner(
        "b+lf", callback=LambdaCallback(lambda e, lr, s, _: s == "linear" and modes.append(lr.net.training))
    )
    learner.learn(tiny_stream().tasks[0])
    assert modes
    assert not any(modes)


@pytest.mark.parametrize("stage", ["tangent", "projection"])
def test_batch_norm_can_be_frozen_while_the_rest_is_trained(stage: str) -> None:
    if stage == "tangent":
        assert Album("b+ff", tangent__batch_norm="eval").changed("full") == PARAMETERS
    else:
        assert Album("itl", projection__batch_norm="eval").changed("projection") == PARAMETERS


def test_momentum_is_carried_neither_from_stage_to_stage_nor_from_task_to_task() -> None:
    """A learner that is handed another's network and memory between two tasks ends with the same weights."""
    stream = tiny_stream()
    settings = {"specialist__momentum": 0.9, "tangent__momentum": 0.9, "projection__momentum": 0.9}
    begins: list[tuple[str, list[str]]] = []

    def listen(event: str, learner: Learner, stage: str | None, epoch: int) -> None:
        if event == "on_stage_start":
            begins.append((str(stage), list(learner.stage_state.momentum)))

    one, other = (tiny_learner("itl", callback=LambdaCallback(listen), **settings) for _ in range(2))
    one.learn(stream.tasks[0])
    other.prepare(stream.tasks[0])
    other.net.load_state_dict(one.net.state_dict())
    other.memory.pixels.copy_(one.memory.pixels)
    other.memory.slots, other.tasks = one.memory.slots.copy(), list(one.tasks)
    for learner in (one, other):
        learner.learn(stream.tasks[1])
    assert differing_keys(learner_snapshot(one), learner_snapshot(other)) == set()
    assert begins
    assert all(names == [] for _, names in begins)


def test_the_first_step_of_every_stage_is_plain_gradient_descent() -> None:
    """With momentum 0.9 or without, a stage of one step ends in the same place, whatever the stage before left."""
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


def test_projection_over_the_task_looks_at_the_task() -> None:
    stream, sizes = tiny_stream(), {}

    class Sizes(LambdaCallback):
        def on_stage_start(self, learner: Learner, stage: Any) -> None:
            sizes[stage.name] = getattr(stage.planner, "size", None)

    tiny_learner("itl", projection__over="task", callback=Sizes(lambda *_: None)).learn(stream.tasks[0])
    assert sizes == {"specialist": None, "tangent": 8, "projection": 20}
