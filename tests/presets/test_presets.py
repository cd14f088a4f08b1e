"""Methods are data: the published values, and rows that differ only where they should."""

from __future__ import annotations

from typing import Any

import pytest

from itl import streams
from itl.presets import METHODS, get, settings_for
from itl.settings import flatten
from itl.specialists import resolve_options

BUFFERS = (200, 500, 5120)


def flat(method: str, stream: str | None = "seq-cifar10", buffer: int = 200) -> dict[str, Any]:
    return flatten(settings_for(method, stream, buffer).model_dump())


def apart(one: str, other: str, stream: str | None = "seq-cifar10", buffer: int = 200) -> dict[str, tuple[Any, Any]]:
    """The settings in which two methods differ."""
    a, b = flat(one, stream, buffer), flat(other, stream, buffer)
    return {name: (a[name], b[name]) for name in a if a[name] != b[name]}


@pytest.mark.parametrize("method", list(METHODS))
@pytest.mark.parametrize("stream", [None, *streams.names()])
def test_every_methods_defaults_are_valid_everywhere(method: str, stream: str | None) -> None:
    for buffer in BUFFERS:
        settings_for(method, stream, buffer)
    about = get(method)
    assert about.summary
    assert about.reference


# The benchmark's table: (stream, buffer) to learning rate, alpha, beta.
PUBLISHED = {
    "sgd": {("seq-cifar10", b): (0.1, None, None) for b in BUFFERS}
    | {("seq-tinyimagenet", b): (0.03, None, None) for b in BUFFERS},
    "er": {("seq-cifar10", b): (0.1, None, None) for b in BUFFERS}
    | {
        ("seq-tinyimagenet", 200): (0.1, None, None),
        ("seq-tinyimagenet", 500): (0.03, None, None),
        ("seq-tinyimagenet", 5120): (0.1, None, None),
    },
    "derpp": {
        ("seq-cifar10", 200): (0.03, 0.1, 0.5),
        ("seq-cifar10", 500): (0.03, 0.2, 0.5),
        ("seq-cifar10", 5120): (0.03, 0.1, 1.0),
        ("seq-tinyimagenet", 200): (0.03, 0.1, 1.0),
        ("seq-tinyimagenet", 500): (0.03, 0.2, 0.5),
        ("seq-tinyimagenet", 5120): (0.03, 0.1, 0.5),
    },
}


PUBLISHED |= {
    "joint": {("seq-cifar10", b): (0.1, None, None) for b in BUFFERS}
    | {("seq-tinyimagenet", b): (0.03, None, None) for b in BUFFERS},
    "agem": {("seq-cifar10", b): (0.03, None, None) for b in BUFFERS}
    | {("seq-tinyimagenet", b): (0.01, None, None) for b in BUFFERS},
    "der": {("seq-cifar10", b): (0.03, 0.3, 0.0) for b in BUFFERS}
    | {("seq-tinyimagenet", b): (0.03, 0.1, 0.0) for b in BUFFERS},
}
POLICIES = {"sgd": "none", "joint": "none", "agem": "stratified"}


@pytest.mark.parametrize("method", list(PUBLISHED))
def test_baselines_have_the_benchmarks_published_settings(method: str) -> None:
    for (stream, buffer), (lr, alpha, beta) in PUBLISHED[method].items():
        settings = settings_for(method, stream, buffer)
        s = settings.specialist
        assert s.lr == lr, (stream, buffer)
        assert (s.batch, s.replay, s.momentum, s.weight_decay) == (32, 32, 0.0, 0.0)
        assert (s.schedule, s.reduction, s.steps) == ("constant", "mean", None)
        assert s.epochs == (50 if stream == "seq-cifar10" else 100)
        if alpha is not None:
            assert (s.alpha, s.beta) == (alpha, beta), (stream, buffer)
        assert (settings.net.name, settings.net.width, settings.net.strided) == ("resnet18", None, False)
        assert settings.generalist == "none"
        assert settings.augment.task is settings.augment.memory is None  # crop and flip only
        assert settings.memory.policy == POLICIES.get(method, "reservoir")


# CLS-ER's: learning rate, weight of the consistency, chances of the stable and the plastic average.
CLS_ER = {
    ("seq-cifar10", 200): (0.1, 0.15, 0.1, 0.3),
    ("seq-cifar10", 500): (0.1, 0.15, 0.1, 0.9),
    ("seq-cifar10", 5120): (0.1, 0.15, 0.8, 1.0),
    ("seq-tinyimagenet", 200): (0.05, 0.1, 0.04, 0.08),
    ("seq-tinyimagenet", 500): (0.05, 0.1, 0.05, 0.08),
    ("seq-tinyimagenet", 5120): (0.05, 0.1, 0.07, 0.08),
}


@pytest.mark.parametrize("where", list(CLS_ER))
def test_cls_er_has_its_authors_settings(where: tuple[str, int]) -> None:
    s = resolve_options(settings_for("cls-er", *where)).specialist
    own = s.options
    assert (s.lr, own["reg"], own["stable_rate"], own["plastic_rate"]) == CLS_ER[where]
    assert (own["stable_alpha"], own["plastic_alpha"], s.epochs, s.batch, s.replay) == (0.999, 0.999, 50, 32, 32)


def test_the_other_baselines_have_the_settings_they_were_published_with() -> None:
    icarl = {b: settings_for("icarl", "seq-cifar10", b).specialist for b in BUFFERS}
    assert {b: s.lr for b, s in icarl.items()} == {200: 0.1, 500: 0.1, 5120: 0.03}
    assert icarl[200].weight_decay == 2e-5  # the loss has 1e-5 ‖w‖²
    assert settings_for("icarl", "seq-cifar10", 200).memory.policy == "herding"
    lwf = settings_for("lwf", "seq-cifar10", 200).specialist
    assert (lwf.lr, lwf.alpha, lwf.weight_decay) == (0.01, 3.0, 1e-3)
    assert settings_for("lwf", "seq-tinyimagenet", 200).specialist.alpha == 1.0
    assert resolve_options(settings_for("lwf", "seq-cifar10", 200)).specialist.options == {"temperature": 2.0}
    for buffer, alpha, beta, margin, eta in ((500, 0.3, 0.8, 0.7, 0.001), (2000, 0.6, 0.9, 0.2, 0.01)):
        x_der = resolve_options(settings_for("x-der", "seq-cifar100", buffer)).specialist
        assert (x_der.lr, x_der.alpha, x_der.beta) == (0.03, alpha, beta)
        own = {"gamma": 0.85, "consistency": 0.05, "temperature": 5.0, "margin": margin, "eta": eta}
        assert x_der.options == own
    co2l = resolve_options(settings_for("co2l", "seq-cifar10", 200)).specialist
    assert (co2l.batch, co2l.lr, co2l.momentum, co2l.weight_decay, co2l.epochs) == (512, 0.5, 0.9, 1e-4, 100)
    own = co2l.options
    assert (own["temperature"], own["now_temperature"], own["past_temperature"]) == (0.5, 0.2, 0.01)
    assert (own["first_epochs"], own["probe_epochs"], own["probe_lr"]) == (500, 100, 1.0)
    gdumb = resolve_options(settings_for("gdumb", "seq-cifar100", 500)).specialist
    assert (gdumb.lr, gdumb.options, gdumb.momentum, gdumb.weight_decay) == (
        0.05,
        {"min_lr": 0.0005, "cutmix": 1.0},
        0.9,
        1e-6,
    )
    assert settings_for("er-ace", "seq-cifar100", 500).specialist.lr == 0.03


@pytest.mark.parametrize("stream", [None, "seq-digits", "seq-cifar10"])
def test_a_generalist_on_any_method_has_the_settings_of_itls(stream: str | None) -> None:
    itl = settings_for("itl", stream, 200)
    for method in METHODS:
        if settings_for(method, stream, 200).generalist == "none":
            given = settings_for(method, stream, 200, {"generalist": "tangent", "tangent.lr": 0.5})
            assert given.projection == itl.projection
            assert given.tangent == itl.tangent.model_copy(update={"lr": 0.5})  # the user's own wins


def test_a_method_without_a_memory_gets_one_for_a_generalist_and_another_specialist_no_options() -> None:
    for method in ("sgd", "joint", "lwf"):
        assert settings_for(method, None, 20).memory.policy == "none"
        assert settings_for(method, None, 20, {"generalist": "tangent"}).memory.policy == "stratified"
        with_ring = {"generalist": "tangent", "memory.policy": "ring"}
        assert settings_for(method, None, 20, with_ring).memory.policy == "ring"
    assert settings_for("cls-er", "seq-cifar10", 200, {"specialist.name": "er"}).specialist.options == {}


def test_derpp_draws_twice_from_a_memory_that_stores_logits() -> None:
    settings = settings_for("derpp", "seq-cifar10", 200)
    assert settings.specialist.draws == 2
    assert settings.memory.logits


def test_between_published_sizes_the_nearest_counts() -> None:
    assert settings_for("derpp", "seq-cifar10", 480).specialist.alpha == 0.2
    assert settings_for("derpp", "seq-cifar10", 300).specialist.alpha == 0.1
    assert settings_for("derpp", "seq-cifar10", 9000).specialist.beta == 1.0


@pytest.mark.parametrize("stream", [None, *streams.names()])
@pytest.mark.parametrize("buffer", BUFFERS)
def test_na_leaves_autoaugment_out_on_the_tasks_only(stream: str | None, buffer: int) -> None:
    alone = {"specialist.alpha": (0.2, 0.1), "projection.lr": (0.03, 0.05), "projection.epochs": (60, 120)}
    for method in ("itl", "itl-l"):
        chosen = alone if (method, stream, buffer) == ("itl-l", "seq-cifar10", 500) else {}  # for itl-l-na
        assert apart(method, f"{method}-na", stream, buffer) == {"augment.task": ("stream", None), **chosen}


@pytest.mark.parametrize("stream", [None, *streams.names()])
def test_rungs_of_the_ablation_differ_in_the_generalist_alone(stream: str | None) -> None:
    assert apart("itl", "b", stream) == {"generalist": ("tangent", "none")}
    assert apart("itl", "b+ff", stream) == {"generalist": ("tangent", "full")}
    assert apart("itl", "b+lf", stream) == {"generalist": ("tangent", "linear")}
    assert apart("b+lf", "b+hp+lf", stream) == {"half_pipe": (None, True)}
    assert apart("b+ff", "b+hp+ff+pd", stream) == {"half_pipe": (None, True), "project": (None, True)}


def test_itl_is_offline_er_and_itl_l_is_derpp() -> None:
    itl, itl_l = settings_for("itl", "seq-cifar10", 200), settings_for("itl-l", "seq-cifar10", 200)
    assert (itl.specialist.name, itl.memory.policy, itl.memory.logits) == ("er-separate", "stratified", None)
    assert (itl_l.specialist.name, itl_l.memory.policy, itl_l.memory.logits) == ("derpp", "reservoir", True)
    assert (itl.tangent.alpha, itl.tangent.beta) == (0.0, 1.0)
    assert (itl_l.tangent.alpha, itl_l.tangent.beta) == (1.0, 1.0)  # the paper: alpha_tg = beta_tg = 1
    for settings in (itl, itl_l):
        assert (settings.generalist, settings.jumps, settings.projects) == ("tangent", True, True)
        assert settings.tangent.layers == 2
        assert (settings.specialist.batch, settings.specialist.replay, settings.specialist.epochs) == (32, 32, 50)
        assert (settings.tangent.batch, settings.projection.batch) == (32, 32)
        assert settings.projection.over == "memory"
        assert settings.augment.task == settings.augment.memory == "stream"


@pytest.mark.parametrize("buffer", BUFFERS)
@pytest.mark.parametrize("stream", ["seq-cifar10", "seq-tinyimagenet"])
def test_itl_l_uses_derpps_alpha_and_beta_and_the_papers_fifty_epochs(stream: str, buffer: int) -> None:
    ours, theirs = (settings_for(m, stream, buffer).specialist for m in ("itl-l", "derpp"))
    assert (ours.alpha, ours.beta) == (theirs.alpha, theirs.beta)
    assert ours.epochs == settings_for("itl", stream, buffer).specialist.epochs == 50


def test_the_users_own_settings_win() -> None:
    assert settings_for("derpp", "seq-cifar10", 200, {"specialist.alpha": 0.9}).specialist.alpha == 0.9
    assert settings_for("er", "seq-cifar10", 200, {"generalist": "tangent"}).projects
