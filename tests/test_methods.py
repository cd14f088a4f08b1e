"""Methods are data: the published values, and rows that differ only where they should."""

from __future__ import annotations

from typing import Any

import pytest

from itl import streams
from itl.methods import METHODS, get, settings_for
from itl.settings import flatten

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
    assert about.about
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
        assert settings.memory.policy == ("none" if method == "sgd" else "reservoir")


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
    for method in ("itl", "itl-l"):
        assert apart(method, f"{method}-na", stream, buffer) == {"augment.task": ("stream", None)}


@pytest.mark.parametrize("stream", [None, *streams.names()])
def test_rungs_of_the_ablation_differ_in_the_generalist_alone(stream: str | None) -> None:
    assert apart("itl", "b", stream) == {"generalist": ("tangent", "none")}
    assert apart("itl", "b+ff", stream) == {"generalist": ("tangent", "full")}
    assert apart("itl", "b+lf", stream) == {"generalist": ("tangent", "linear")}
    assert apart("b+lf", "b+hp+lf", stream) == {"half_pipe": (None, True)}
    assert apart("b+ff", "b+hp+ff+pd", stream) == {"half_pipe": (None, True), "project": (None, True)}


def test_itl_is_offline_er_and_itl_l_is_derpp() -> None:
    itl, itl_l = settings_for("itl", "seq-cifar10", 200), settings_for("itl-l", "seq-cifar10", 200)
    assert (itl.specialist.name, itl.memory.policy, itl.memory.logits) == ("er", "stratified", None)
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
