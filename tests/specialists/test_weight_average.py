"""The average of a specialist's weights: its values, its use, and that it survives an interruption."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import itl
from itl import Learner, UserError
from support.tiny import LambdaCallback, differing_keys, tiny_stream
from support.tiny_methods import baseline_learner, full_snapshot, save_each_stage

AVERAGE = 0.8  # averages about five steps; a task has nine
METHODS = ["itl", "itl-l", "derpp", "gcr"]  # their specialists have the option `average`
State = dict[str, Tensor]


def averaging(method: str, average: float = AVERAGE, **settings: Any) -> Learner:
    own = {"specialist__name": "er-separate"} if method == "itl" else {}
    return baseline_learner(method, specialist__epochs=3, specialist__options={"average": average}, **own, **settings)


def floats(state: State) -> State:
    return {n: t.clone() for n, t in state.items() if t.is_floating_point()}


def record_states(learner: Learner) -> list[State]:
    """Collects the network's state after every step of the specialist."""
    states: list[State] = []
    on_task_start = learner.specialist.on_task_start

    def restart() -> None:
        on_task_start()
        states.clear()

    after = learner.specialist.after_step

    def record_step(net: Any, *views: Any) -> None:
        states.append(floats(net.state_dict()))
        after(net, *views)

    learner.specialist.on_task_start, learner.specialist.after_step = restart, record_step  # type: ignore[method-assign]
    return states


def expected_average(states: list[State], average: float) -> State:
    """Arithmetic mean until the average has covered its horizon, then an exponential moving average."""
    shares = np.ones(1)
    for k in range(1, len(states)):
        keep = min(k / (k + 1), average)
        shares = np.append(shares * keep, 1 - keep)
    assert shares.sum() == pytest.approx(1)
    return {n: sum(s * state[n].double() for s, state in zip(shares, states, strict=True)) for n in states[0]}  # type: ignore[misc]


@pytest.mark.parametrize(("method", "average"), [*((method, 0.8) for method in METHODS), ("itl", 0.999)])
def test_average_covers_the_tasks_steps(method: str, average: float) -> None:
    found: list[tuple[State, State]] = []

    def record_event(event: str, learner: Learner, stage: str | None, done: int) -> None:
        if (event, stage) == ("on_stage_end", "specialist"):
            found.append(
                (floats(learner.specialist.model_copies["mean"].state_dict()), expected_average(states, average))
            )

    stream, learner = tiny_stream(), averaging(method, average, callback=LambdaCallback(record_event))
    learner.prepare(stream.tasks[0])
    states = record_states(learner)
    for task in stream:
        learner.learn(task)
    assert len(found) == 2
    assert len(states) == 9  # more than the horizon of `average` 0.8
    for mean, expected in found:
        assert mean.keys() == expected.keys()
        assert any(n.endswith("running_var") for n in mean)
        for name, tensor in mean.items():
            torch.testing.assert_close(tensor.double(), expected[name], rtol=1e-5, atol=1e-6)
    last = states[-1]
    assert any(not torch.allclose(last[n], found[-1][0][n], rtol=1e-3) for n in last)  # differs from the last step


@pytest.mark.parametrize("method", ["itl", "itl-l"])
def test_generalist_starts_from_the_average_which_is_then_discarded(method: str) -> None:
    recorded: dict[str, Any] = {}

    def record_event(event: str, learner: Learner, stage: str | None, done: int) -> None:
        if (event, stage) == ("on_stage_end", "specialist"):
            recorded["mean"] = floats(learner.specialist.model_copies["mean"].state_dict())
            x = learner.normalize(stream.tasks[0].test.pixels)
            recorded["average_logits"] = learner.specialist.model_copies["mean"](x)
            recorded["evaluated"] = learner.logits(stream.tasks[0].test)
            recorded["trained"] = floats(learner.net.state_dict())
        if (event, stage) == ("on_stage_start", "tangent"):
            recorded["features"] = {n: t for n, t in floats(learner.net.state_dict()).items() if "classifier" not in n}

    stream, learner = tiny_stream(), averaging(method, callback=LambdaCallback(record_event))
    learner.learn(stream.tasks[0])
    assert torch.equal(recorded["evaluated"], recorded["average_logits"])
    assert all(torch.equal(t, recorded["mean"][n]) for n, t in recorded["features"].items())
    assert any(not torch.equal(t, recorded["trained"][n]) for n, t in recorded["features"].items())
    assert learner.specialist.model_copies == {}  # only the expert is saved
    x = learner.normalize(stream.tasks[0].test.pixels)
    assert torch.equal(learner.logits(stream.tasks[0].test), learner.net.eval()(x))


@pytest.mark.parametrize(("method", "classes"), [*((method, 4) for method in METHODS), ("itl-l", None)])
def test_average_resumes_exactly(method: str, classes: int | None, tmp_path: Path) -> None:
    stream, learner = tiny_stream(), averaging(method, classes=classes, callback=save_each_stage(tmp_path))
    for task in stream:
        learner.learn(task)
    logits = learner.logits(stream.tasks[0].test)
    folders = list(tmp_path.iterdir())
    assert folders
    for folder in folders:
        again = itl.load(folder, device="cpu")
        again.learn(stream.tasks[1])
        assert differing_keys(full_snapshot(again), full_snapshot(learner)) == set(), folder.name
        assert torch.equal(again.logits(stream.tasks[0].test), logits)


@pytest.mark.parametrize("method", METHODS)
def test_disabled_average_has_no_effect(method: str) -> None:
    stream, learner = tiny_stream(), averaging(method, 0.0)
    learner.learn(stream.tasks[0])
    assert learner.specialist.model_copies == {}
    assert learner.specialist.mutable_tensors() == []
    assert learner.specialist.draw_inputs(np.random.default_rng(0), 3, 0) == {}


def test_average_does_not_change_training() -> None:
    """Without a generalist, only the evaluated model differs."""
    stream, ends = tiny_stream(), []
    for average in (0.0, AVERAGE):
        learner = averaging("derpp", average)
        for task in stream:
            learner.learn(task)
        ends.append((floats(learner.net.state_dict()), learner.logits(stream.tasks[0].test)))
    (plain, logits), (with_mean, other) = ends
    assert all(torch.equal(plain[n], with_mean[n]) for n in plain)
    assert not torch.equal(logits, other)


def test_average_is_an_option_of_the_specialist_of_the_stream() -> None:
    """On Seq-Digits `itl` uses er-separate, which has the option; elsewhere er, which does not."""
    learner = Learner("itl", 20, settings={"specialist.options.average": 0.9}, device="cpu")
    assert learner.configuration.settings_for("seq-digits").specialist.options == {"average": 0.9}
    with pytest.raises(UserError, match="average': the specialist er has no options"):
        learner.learn(tiny_stream().tasks[0])
    for name, value, message in (
        ("averages", 0.9, "Did you mean 'specialist.options.average"),
        ("average", 1.0, "less than 1"),
    ):
        with pytest.raises(UserError, match=message):
            Learner("itl", 20, settings={f"specialist.options.{name}": value}, device="cpu")


def test_reverse_design_has_no_average() -> None:
    with pytest.raises(UserError, match="average': design=reverse has no options"):
        averaging("itl", design="reverse")
    learner = baseline_learner("itl", specialist__name="er-separate", design="reverse")
    learner.learn(tiny_stream().tasks[0])
    assert learner.settings.specialist.options == {}
