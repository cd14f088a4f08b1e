"""The mean of a specialist's weights: what it is, where it is used, and that it survives a stop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import itl
from itl import Learner, UserError
from support.tiny import Teller, differing, tiny_stream
from support.tiny_methods import keeping, learner_of, whole

AVERAGE = 0.8  # looks five steps back; a task has nine
MEANS = ["itl", "itl-l", "derpp", "gcr"]  # er-separate's and DER++'s
State = dict[str, Tensor]


def averaging(method: str, average: float = AVERAGE, **settings: Any) -> Learner:
    own = {"specialist__name": "er-separate"} if method == "itl" else {}
    return learner_of(method, specialist__epochs=3, specialist__options={"average": average}, **own, **settings)


def floats(state: State) -> State:
    return {n: t.clone() for n, t in state.items() if t.is_floating_point()}


def watched(learner: Learner) -> list[State]:
    """The network after every step of the specialist, as it comes to be."""
    seen: list[State] = []
    starts = learner.specialist.on_task_start

    def begin() -> None:
        starts()
        seen.clear()

    after = learner.specialist.after_step

    def note(net: Any, *views: Any) -> None:
        seen.append(floats(net.state_dict()))
        after(net, *views)

    learner.specialist.on_task_start, learner.specialist.after_step = begin, note  # type: ignore[method-assign]
    return seen


def mean_by_hand(states: list[State], average: float) -> State:
    """All steps count the same until the mean is as old as it looks back; then each pushes the others' share down."""
    normalize_weights = np.ones(1)
    for k in range(1, len(states)):
        keep = min(k / (k + 1), average)
        normalize_weights = np.append(normalize_weights * keep, 1 - keep)
    assert normalize_weights.sum() == pytest.approx(1)
    return {
        n: sum(s * state[n].double() for s, state in zip(normalize_weights, states, strict=True)) for n in states[0]
    }  # type: ignore[misc]


@pytest.mark.parametrize("method", MEANS)
@pytest.mark.parametrize("average", [0.8, 0.999])
def test_the_mean_is_that_of_the_tasks_own_steps(method: str, average: float) -> None:
    found: list[tuple[State, State]] = []

    def tell(event: str, learner: Learner, stage: str | None, done: int) -> None:
        if (event, stage) == ("on_stage_end", "specialist"):
            found.append((floats(learner.specialist.model_copies["mean"].state_dict()), mean_by_hand(seen, average)))

    stream, learner = tiny_stream(), averaging(method, average, callback=Teller(tell))
    learner.prepare(stream.tasks[0])
    seen = watched(learner)
    for task in stream:
        learner.learn(task)
    assert len(found) == 2
    assert len(seen) == 9  # more than `average` 0.8 looks back
    for mean, expected in found:
        assert mean.keys() == expected.keys()
        assert any(n.endswith("running_var") for n in mean)
        for name, tensor in mean.items():
            torch.testing.assert_close(tensor.double(), expected[name], rtol=1e-5, atol=1e-6)
    last = seen[-1]
    assert any(not torch.allclose(last[n], found[-1][0][n], rtol=1e-3) for n in last)  # it is not the last step's


@pytest.mark.parametrize("method", ["itl", "itl-l"])
def test_a_generalist_starts_from_the_mean_and_the_expert_stands_alone(method: str) -> None:
    heard: dict[str, Any] = {}

    def tell(event: str, learner: Learner, stage: str | None, done: int) -> None:
        if (event, stage) == ("on_stage_end", "specialist"):
            heard["mean"] = floats(learner.specialist.model_copies["mean"].state_dict())
            x = learner.normalize(stream.tasks[0].test.pixels)
            heard["says"] = learner.specialist.model_copies["mean"](x)
            heard["evaluated"] = learner.logits(stream.tasks[0].test)
            heard["trained"] = floats(learner.net.state_dict())
        if (event, stage) == ("on_stage_start", "tangent"):
            heard["features"] = {n: t for n, t in floats(learner.net.state_dict()).items() if "classifier" not in n}

    stream, learner = tiny_stream(), averaging(method, callback=Teller(tell))
    learner.learn(stream.tasks[0])
    assert torch.equal(heard["evaluated"], heard["says"])
    assert all(torch.equal(t, heard["mean"][n]) for n, t in heard["features"].items())
    assert any(not torch.equal(t, heard["trained"][n]) for n, t in heard["features"].items())
    assert learner.specialist.model_copies == {}  # nothing but the expert is saved
    x = learner.normalize(stream.tasks[0].test.pixels)
    assert torch.equal(learner.logits(stream.tasks[0].test), learner.net.eval()(x))


@pytest.mark.parametrize("method", MEANS)
@pytest.mark.parametrize("classes", [4, None])
def test_it_goes_on_exactly_where_it_was_stopped(method: str, classes: int | None, tmp_path: Path) -> None:
    stream, learner = tiny_stream(), averaging(method, classes=classes, callback=keeping(tmp_path))
    for task in stream:
        learner.learn(task)
    said = learner.logits(stream.tasks[0].test)
    places = list(tmp_path.iterdir())
    assert places
    for place in places:
        again = itl.load(place, device="cpu")
        again.learn(stream.tasks[1])
        assert differing(whole(again), whole(learner)) == set(), place.name
        assert torch.equal(again.logits(stream.tasks[0].test), said)


@pytest.mark.parametrize("method", MEANS)
def test_without_it_nothing_is_kept_and_nothing_changes(method: str) -> None:
    stream, learner = tiny_stream(), averaging(method, 0.0)
    learner.learn(stream.tasks[0])
    assert learner.specialist.model_copies == {}
    assert learner.specialist.mutable_tensors() == []
    assert learner.specialist.draw_inputs(np.random.default_rng(0), 3, 0) == {}


def test_the_mean_does_not_change_what_is_trained() -> None:
    """Without a generalist it ends as it does without a mean: only what is evaluated is other."""
    stream, ends = tiny_stream(), []
    for average in (0.0, AVERAGE):
        learner = averaging("derpp", average)
        for task in stream:
            learner.learn(task)
        ends.append((floats(learner.net.state_dict()), learner.logits(stream.tasks[0].test)))
    (plain, said), (with_mean, other) = ends
    assert all(torch.equal(plain[n], with_mean[n]) for n in plain)
    assert not torch.equal(said, other)


def test_an_option_may_be_that_of_the_specialist_on_one_stream_alone() -> None:
    """`itl` has er-separate, which may have a mean, on Seq-Digits; elsewhere er, which has none."""
    learner = Learner("itl", 20, settings={"specialist.options.average": 0.9}, device="cpu")
    assert learner.configuration.settings_for("seq-digits").specialist.options == {"average": 0.9}
    with pytest.raises(UserError, match="average': the specialist er has no options of its own"):
        learner.learn(tiny_stream().tasks[0])
    for name, value, said in (
        ("averages", 0.9, "did you mean specialist.options.average"),
        ("average", 1.0, "less than 1"),
    ):
        with pytest.raises(UserError, match=said):
            Learner("itl", 20, settings={f"specialist.options.{name}": value}, device="cpu")


def test_the_other_design_whose_specialist_learns_on_a_plane_has_no_mean() -> None:
    with pytest.raises(UserError, match="average': design=reverse has no options of its own"):
        averaging("itl", design="reverse")
    learner = learner_of("itl", specialist__name="er-separate", design="reverse")
    learner.learn(tiny_stream().tasks[0])
    assert learner.settings.specialist.options == {}
