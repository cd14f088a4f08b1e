"""Every method learns, with and without the tangent generalist, and resumes exactly after an interruption."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import itl
from itl import Learner, UserError, presets
from itl.nets import ModuleAdapter
from itl.settings import SpecialistSettings
from itl.specialists import build, names
from support.tiny import TINY, LambdaCallback, differing_keys, learner_snapshot, tiny_images, tiny_learner, tiny_stream
from support.tiny_methods import BASELINE_SETTINGS, BASELINES, baseline_learner, full_snapshot, save_each_stage

SETTINGS = (Path(__file__).parents[2] / "docs" / "settings.md").read_text().partition("## Settings without effect")[2]


def stages(learner: Learner) -> list[str]:
    return ["specialist", *(["closing"] if learner.specialist.closing_phase() is not None else [])]


@pytest.mark.parametrize(
    ("method", "generalist"), [*((method, "tangent") for method in BASELINES), ("x-der", "none"), ("icarl", "none")]
)
def test_method_resumes_exactly_within_a_task(method: str, generalist: str, tmp_path: Path) -> None:
    stream = tiny_stream()
    learner = baseline_learner(method, generalist=generalist, callback=save_each_stage(tmp_path))
    for task in stream:
        learner.learn(task)
    end, logits = full_snapshot(learner), learner.logits(stream.tasks[0].test)
    assert torch.isfinite(logits).all()
    expected = {*stages(learner), *(["tangent", "projection"] if generalist == "tangent" else [])}
    assert {path.name for path in tmp_path.iterdir()} == expected
    for stage in expected:
        again = itl.load(tmp_path / stage, device="cpu")
        again.recall(stream.tasks[:1])
        again.learn(stream.tasks[1])
        assert differing_keys(full_snapshot(again), end) == set(), f"stopped in {stage}"
        assert torch.equal(again.logits(stream.tasks[0].test), logits)


@pytest.mark.parametrize("method", BASELINES)
def test_method_resumes_exactly_between_tasks(method: str, tmp_path: Path) -> None:
    stream, learner = tiny_stream(), baseline_learner(method)
    learner.learn(stream.tasks[0])
    learner.save(tmp_path)
    again = itl.load(tmp_path, device="cpu")
    assert torch.equal(again.logits(stream.tasks[0].test), learner.logits(stream.tasks[0].test))
    again.recall(stream.tasks[:1])
    for each in (learner, again):
        each.learn(stream.tasks[1])
    assert differing_keys(full_snapshot(again), full_snapshot(learner)) == set()


@pytest.mark.parametrize("method", BASELINES)
def test_untrained_method_predicts_with_its_network(method: str) -> None:
    stream, learner = tiny_stream(), baseline_learner(method)
    learner.prepare(stream.tasks[0])
    x = learner.normalize(stream.tasks[0].test.pixels)
    assert torch.equal(learner.logits(stream.tasks[0].test), learner.net.eval()(x))


@pytest.mark.parametrize("method", [m for m in BASELINES if m != "x-der"])
def test_method_learns_with_a_growing_classifier(method: str) -> None:
    stream, learner = tiny_stream(), baseline_learner(method, classes=None)
    for task in stream:
        learner.learn(task)
    assert learner.logits(stream.tasks[1].test).shape == (12, 4)
    assert torch.isfinite(learner.logits(stream.tasks[1].test)).all()


@pytest.mark.slow
@pytest.mark.parametrize("method", BASELINES)
def test_method_learns(method: str) -> None:
    """Uses twelve times as many steps as the other tests; the synthetic patterns are easy to learn."""
    many = {"specialist__epochs": 24} if method != "gdumb" else {"specialist__epochs": 62}
    own = {**BASELINE_SETTINGS.get(method, {}), **many}
    if method == "co2l":
        own |= {"specialist__options__first_epochs": 24, "specialist__options__probe_epochs": 24}
    stream, learner = tiny_stream(), tiny_learner(method, buffer=16, net__name="resnet8", **own)
    for task in stream:
        learner.learn(task)
    scores = learner.evaluate(stream)
    assert scores.task_il > 75  # chance is 50
    if method == "joint":
        assert scores.class_il > 75


@pytest.mark.parametrize("method", BASELINES)
def test_chunk_size_does_not_change_a_methods_results(method: str) -> None:
    from dataclasses import replace

    stream, ends = tiny_stream(), []
    for size in (256 << 20, 1):
        learner = baseline_learner(method)
        learner.prepare(stream.tasks[0])
        learner.engine = replace(learner.engine, input_bytes=size)
        for task in stream:
            learner.learn(task)
        ends.append(full_snapshot(learner))
    assert differing_keys(*ends) == set()


def test_joint_learns_from_all_tasks_and_requires_their_images(tmp_path: Path) -> None:
    stream, learner = tiny_stream(), baseline_learner("joint")
    trained_on: list[int] = []
    learner.learn(stream.tasks[0])
    learner.save(tmp_path)
    loss = learner.specialist.loss
    learner.specialist.loss = lambda net, batch, replay_batches: (
        trained_on.extend(batch.y.tolist()) or loss(net, batch, replay_batches)
    )  # type: ignore[method-assign, func-returns-value]
    learner.learn(stream.tasks[1])
    assert sorted(trained_on) == sorted([0, 1, 2, 3] * 10 * 2)  # two epochs over the 40 images of both tasks
    with pytest.raises(UserError, match=r"those of 1 earlier tasks are missing; pass these tasks to learner\.recall"):
        itl.load(tmp_path, device="cpu").learn(stream.tasks[1])


@pytest.mark.parametrize("method", ["joint", "gdumb"])
def test_method_that_resets_the_network_starts_each_task_with_a_new_one(method: str) -> None:
    stream, learner = tiny_stream(), baseline_learner(method, specialist__lr=1e-9, specialist__momentum=0.0)
    seen = []
    for task in stream:
        learner.learn(task)
        seen.append(learner.net.classifier.weight.clone())
    assert not torch.allclose(seen[0], seen[1], atol=1e-3)


def test_gdumb_trains_only_on_its_memory() -> None:
    stream, learner = tiny_stream(), baseline_learner("gdumb")
    learner.prepare(stream.tasks[0])
    trained_on: list[int] = []
    loss = learner.specialist.loss
    learner.specialist.loss = lambda net, batch, replay_batches: (
        trained_on.append(len(batch.y)) or loss(net, batch, replay_batches)
    )  # type: ignore[method-assign, func-returns-value]
    for task in stream:
        learner.learn(task)
    assert trained_on == [8] * 6  # three epochs per task over a memory of eight
    assert sorted(learner.memory.labels) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_generalist_starts_from_the_evaluated_model() -> None:
    """CLS-ER evaluates its stable average; after the generalist the averages continue from the expert."""
    stream, states = tiny_stream(), {}

    def record_event(event: str, learner: Learner, stage: str | None, done: int) -> None:
        if (event, stage) == ("on_stage_start", "tangent"):
            states["features"] = {n: t.clone() for n, t in learner.net.state_dict().items() if "classifier" not in n}
            states["stable"] = {n: t.clone() for n, t in learner.specialist.model_copies["stable"].state_dict().items()}

    learner = baseline_learner("cls-er", generalist="tangent", callback=LambdaCallback(record_event))
    learner.learn(stream.tasks[0])
    assert all(torch.equal(t, states["stable"][n]) for n, t in states["features"].items())
    for average in learner.specialist.model_copies.values():
        assert all(torch.equal(a, b) for a, b in zip(average.parameters(), learner.net.parameters(), strict=True))


@pytest.mark.parametrize("method", ["lwf", "icarl", "co2l", "x-der"])
def test_method_that_requires_new_classes_refuses_a_known_class(method: str) -> None:
    learner = baseline_learner(method)
    images, labels = tiny_images(4)
    learner.learn(images[labels < 2], labels[labels < 2])
    before = full_snapshot(learner)
    with pytest.raises(UserError, match=rf"{method} needs tasks of new classes, and class 1 was learned before"):
        learner.learn(images[labels > 0], labels[labels > 0])
    assert differing_keys(full_snapshot(learner), before) == set()


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        ("der", {"memory__policy": "stratified"}, r"der stores logits step by step; set memory\.policy=reservoir"),
        ("der", {"memory__logits": False}, r"memory\.logits=false does not store them; set it to true"),
        ("gdumb", {"memory__policy": "reservoir"}, r"selected at the end of a task; set memory\.policy=stratified"),
        ("icarl", {"memory__policy": "reservoir"}, r"selected at the end of a task; set memory\.policy=stratified"),
        ("agem", {"memory__policy": "none"}, "agem needs a memory"),
        ("x-der", {"classes": None}, "number of classes from the start; pass classes=N"),
        ("lwf", {"generalist": "tangent", "memory__policy": "none"}, "lwf needs a memory"),
        (
            "x-der",
            {"memory__policy": "reservoir"},
            r"stores those of the current task; set memory\.policy=stratified, herding",
        ),
        (
            "x-der",
            {"memory__policy": "ring"},
            r"stores those of the current task; set memory\.policy=stratified, herding",
        ),
        (
            "x-der",
            {"memory__policy": "loss-aware"},
            r"stores those of the current task; set memory\.policy=stratified, herding",
        ),
    ],
)
def test_unsupported_settings_are_a_user_error_before_training(
    method: str, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message) as caught:
        baseline_learner(method, **settings).prepare(tiny_stream().tasks[0])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("policy", ["stratified", "herding", "entropy", "coreset"])
def test_x_der_learns_with_every_policy_its_error_names(policy: str) -> None:
    stream, learner = tiny_stream(), baseline_learner("x-der", memory__policy=policy)
    for task in stream:
        learner.learn(task)
    assert torch.isfinite(learner.logits(stream.tasks[0].test)).all()


@pytest.mark.parametrize("method", BASELINES)
@pytest.mark.parametrize("frozen", [False, True])
def test_method_trains_a_user_module_and_keeps_frozen_layers(method: str, frozen: bool) -> None:
    torch.manual_seed(0)
    stem, rest = nn.Conv2d(1, 6, 3), (nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(216, 4))
    own = ModuleAdapter(nn.Sequential(stem.requires_grad_(not frozen), *rest), "4", ["1"])
    given = {name.replace("__", "."): value for name, value in BASELINE_SETTINGS.get(method, {}).items()}
    learner = Learner(method, 8, 0, 4, settings={**TINY, **given}, device="cpu", net=own)
    for task in tiny_stream():
        learner.learn(task)
    assert torch.equal(learner.net.state_dict()["module.0.weight"], stem.weight) == frozen
    assert torch.isfinite(learner.logits(tiny_stream().tasks[0].test)).all()


def test_co2l_probe_trains_only_a_user_modules_classifier() -> None:
    layers = OrderedDict(flat=nn.Flatten(), body=nn.Linear(64, 6), out=nn.Linear(6, 4))
    own = ModuleAdapter(nn.Sequential(layers), "out", ["body"])
    settings = {**TINY, **{name.replace("__", "."): value for name, value in BASELINE_SETTINGS["co2l"].items()}}
    learner = Learner("co2l", 8, 0, 4, settings=settings, device="cpu", net=own)
    learner.learn(tiny_stream().tasks[0])
    phase, closing_phase = learner.specialist.training_phase(), learner.specialist.closing_phase()
    assert {n for n in phase.parameters if not n.startswith("head.")} == {"module.body.weight", "module.body.bias"}
    assert closing_phase is not None
    assert set(closing_phase.parameters) == {"module.out.weight", "module.out.bias"}


NO_REPLAY = ["gdumb", "icarl", "co2l", "sgd", "joint", "lwf"]
WITHOUT_EFFECT: dict[str, tuple[Any, list[str]]] = {
    "augment__memory": ("cifar10", [*NO_REPLAY, "gmed"]),
    "specialist__schedule": ("cosine", ["er-t", "gdumb", "co2l"]),
    "specialist__reduction": ("sum", ["icarl", "co2l"]),
    "specialist__draws": (3, [*NO_REPLAY, "cls-er", "agem", "x-der", "gss", "metasp"]),
    "specialist__replay": (3, NO_REPLAY),
}


def trained_snapshot(method: str, **settings: Any) -> dict[str, Tensor]:
    """The state of a learner after two tasks, with `settings`, without augmentation unless they contain it."""
    learner = baseline_learner(method, augment__task=None, **{"augment__memory": None, **settings})
    for task in tiny_stream():
        learner.learn(task)
    return learner_snapshot(learner)


@pytest.mark.parametrize("method", dict.fromkeys(m for _, methods in WITHOUT_EFFECT.values() for m in methods))
def test_settings_without_effect_are_documented(method: str) -> None:
    """All of them are changed at once."""
    changed = {setting: value for setting, (value, methods) in WITHOUT_EFFECT.items() if method in methods}
    assert differing_keys(trained_snapshot(method, **changed), trained_snapshot(method)) == set()
    rows = [line.split("|")[1:3] for line in SETTINGS.splitlines() if line.startswith("| `")]
    for setting in changed:
        assert any(f"`{setting.replace('__', '.')}`" in names and f"`{method}`" in methods for names, methods in rows)


def test_every_specialist_has_a_method_and_a_step_cost() -> None:
    streams = (None, "seq-cifar10")
    used = {presets.settings_for(name, stream, 200).specialist.name for name in presets.METHODS for stream in streams}
    assert {*used, "er-balanced"} == set(names())  # er-balanced is the default of `itl learn`
    for name in names():
        specialist = build(SpecialistSettings(name=name))
        assert specialist.forward_batches >= specialist.backward_batches >= int(specialist.optimizes)
