"""Default settings of methods: published values, and differences between methods."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from itl import streams
from itl._deprecated import SETTING_VALUES, SETTINGS
from itl.errors import UserError
from itl.presets import METHODS, get, settings_for
from itl.presets.compositions import SOLVED
from itl.settings import Settings, flatten
from itl.specialists import resolve_options

BUFFERS = (200, 500, 5120)


def flat(method: str, stream: str | None = "seq-cifar10", buffer: int = 200) -> dict[str, Any]:
    return flatten(settings_for(method, stream, buffer).model_dump())


def differences(
    first: str, second: str, stream: str | None = "seq-cifar10", buffer: int = 200
) -> dict[str, tuple[Any, Any]]:
    """The settings in which two methods differ."""
    a, b = flat(first, stream, buffer), flat(second, stream, buffer)
    return {name: (a[name], b[name]) for name in a if a[name] != b[name]}


@pytest.mark.parametrize("method", list(METHODS))
@pytest.mark.parametrize("stream", [None, *streams.names()])
def test_defaults_are_valid_on_every_stream(method: str, stream: str | None) -> None:
    for buffer in BUFFERS:
        settings_for(method, stream, buffer)
    assert get(method).summary
    assert get(method).reference


# Settings of every method on every stream (differences from the default settings), recorded before defaults moved to
# the methods' files, and again where a choice was made since: {method: {stream: {buffer: settings}}}. A buffer not
# listed has those of the next smaller one.
RECORDED = json.loads((Path(__file__).parent / "recorded_settings.json").read_text())
RECORDED_BUFFERS = (0, 50, 200, 300, 480, 500, 1000, 2000, 5120, 9000)


@pytest.mark.parametrize("method", list(RECORDED))
def test_settings_equal_the_recorded_ones(method: str) -> None:
    default = flatten(Settings().model_dump())
    for stream, cells in RECORDED[method].items():
        expected: dict[str, Any] = {}
        for buffer in RECORDED_BUFFERS:
            recorded = cells.get(str(buffer))
            if recorded is not None:
                current = {SETTINGS.get(name, name): value for name, value in recorded.items()}
                expected = {n: SETTING_VALUES.get((n, v), v) if isinstance(v, str) else v for n, v in current.items()}
            actual = flat(method, stream or None, buffer)
            changed = {n: v for n, v in actual.items() if n not in default or default[n] != v}
            assert changed == expected, (stream, buffer)


# The benchmark's table: learning rate, alpha and beta for each (stream, buffer).
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
def test_baselines_have_the_published_settings_of_the_benchmark(method: str) -> None:
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


# CLS-ER: learning rate, weight of the consistency loss, update probabilities of the stable and the plastic average.
CLS_ER = {
    ("seq-cifar10", 200): (0.1, 0.15, 0.1, 0.3),
    ("seq-cifar10", 500): (0.1, 0.15, 0.1, 0.9),
    ("seq-cifar10", 5120): (0.1, 0.15, 0.8, 1.0),
    ("seq-tinyimagenet", 200): (0.05, 0.1, 0.04, 0.08),
    ("seq-tinyimagenet", 500): (0.05, 0.1, 0.05, 0.08),
    ("seq-tinyimagenet", 5120): (0.05, 0.1, 0.07, 0.08),
}


@pytest.mark.parametrize("where", list(CLS_ER))
def test_cls_er_has_the_settings_of_its_authors(where: tuple[str, int]) -> None:
    s = resolve_options(settings_for("cls-er", *where)).specialist
    own = s.options
    assert (s.lr, own["reg"], own["stable_rate"], own["plastic_rate"]) == CLS_ER[where]
    assert (own["stable_alpha"], own["plastic_alpha"], s.epochs, s.batch, s.replay) == (0.999, 0.999, 50, 32, 32)


def test_other_baselines_have_their_published_settings() -> None:
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
def test_generalist_added_to_any_method_has_the_settings_of_itl(stream: str | None) -> None:
    itl = settings_for("itl", stream, 200)
    for method in METHODS:
        if settings_for(method, stream, 200).generalist == "none":
            given = settings_for(method, stream, 200, {"generalist": "tangent", "tangent.lr": 0.5})
            assert given.projection == itl.projection
            assert given.tangent == itl.tangent.model_copy(update={"lr": 0.5})  # the override takes precedence


def test_generalist_adds_a_memory_and_another_specialist_drops_options() -> None:
    for method in ("sgd", "joint", "lwf"):
        assert settings_for(method, None, 20).memory.policy == "none"
        assert settings_for(method, None, 20, {"generalist": "tangent"}).memory.policy == "stratified"
        with_ring = {"generalist": "tangent", "memory.policy": "ring"}
        assert settings_for(method, None, 20, with_ring).memory.policy == "ring"
    assert settings_for("cls-er", "seq-cifar10", 200, {"specialist.name": "er"}).specialist.options == {}


def test_derpp_draws_two_batches_and_stores_logits() -> None:
    settings = settings_for("derpp", "seq-cifar10", 200)
    assert settings.specialist.draws == 2
    assert settings.memory.logits


def test_buffer_between_published_sizes_uses_the_nearest() -> None:
    assert settings_for("derpp", "seq-cifar10", 480).specialist.alpha == 0.2
    assert settings_for("derpp", "seq-cifar10", 300).specialist.alpha == 0.1
    assert settings_for("derpp", "seq-cifar10", 9000).specialist.beta == 1.0


def solved_differences(stream: str | None, buffer: int = 200) -> dict[str, tuple[Any, Any]]:
    """Settings chosen for itl in one cell; the methods that it is compared with have the earlier ones."""
    if (stream, buffer) != ("seq-cifar10", 200):
        return {}
    earlier = flat("itl-na")
    return {name: (value, earlier[name]) for name, value in SOLVED.items() if earlier[name] != value}


@pytest.mark.parametrize("stream", [None, *streams.names()])
@pytest.mark.parametrize("buffer", BUFFERS)
def test_na_variants_differ_in_the_augmentation_of_tasks_only(stream: str | None, buffer: int) -> None:
    for method in ("itl", "itl-l"):
        chosen = solved_differences(stream, buffer) if method == "itl" else {}
        assert differences(method, f"{method}-na", stream, buffer) == {"augment.task": ("stream", None), **chosen}


@pytest.mark.parametrize("stream", [None, *streams.names()])
def test_ablation_rows_differ_in_the_generalist_only(stream: str | None) -> None:
    solved = solved_differences(stream)
    assert differences("itl", "b", stream) == {"generalist": ("tangent", "none"), **solved}
    assert differences("itl", "b+ff", stream) == {"generalist": ("tangent", "full"), **solved}
    assert differences("itl", "b+lf", stream) == {"generalist": ("tangent", "linear"), **solved}
    assert differences("b+lf", "b+hp+lf", stream) == {"half_pipe": (None, True)}
    assert differences("b+ff", "b+hp+ff+pd", stream) == {"half_pipe": (None, True), "project": (None, True)}


def test_a_generalist_that_cannot_be_solved_drops_the_solver_and_its_penalty() -> None:
    full = settings_for("itl", "seq-cifar10", 200, {"generalist": "full"})
    assert (full.tangent.solver, full.tangent.l2, full.projection.loss) == ("sgd", 1e-5, "kl")
    assert settings_for("itl", "seq-cifar10", 200, {"generalist": "linear"}).tangent.solver == "lbfgs"
    with_tangent = settings_for("er", "seq-cifar10", 200, {"generalist": "tangent"})
    assert (with_tangent.tangent.solver, with_tangent.half_pipe_scale) == ("lbfgs", 10.0)
    with pytest.raises(UserError, match="solves convex problems"):
        settings_for("itl", "seq-cifar10", 200, {"generalist": "full", "tangent.solver": "lbfgs"})


@pytest.mark.parametrize("method", ["itl", "itl-l"])
@pytest.mark.parametrize("stream", [None, "seq-cifar10"])
def test_generalist_on_a_pretrained_backbone_keeps_the_classifier_and_is_solved(
    method: str, stream: str | None
) -> None:
    frozen = settings_for(method, stream, 200, {"net.pretrained": True, "net.trained": 1})
    assert (frozen.redraws_classifier, frozen.projection.teacher_rms) == (False, None)
    assert (frozen.tangent.solver, frozen.tangent.l2, frozen.tangent.views) == ("lbfgs", 1e-3, 2)
    whole = settings_for(method, stream, 200, {"net.pretrained": True})
    assert (whole.tangent.solver, whole.tangent.views) == ("lbfgs", 16)
    given = {"net.pretrained": True, "half_pipe": True, "tangent.l2": 1e-4}
    assert settings_for(method, stream, 200, given).redraws_classifier
    full = settings_for(method, stream, 200, {"net.pretrained": True, "generalist": "full"})
    assert (full.tangent.solver, full.tangent.l2) == ("sgd", 1e-5)


def test_a_pretrained_backbone_does_not_change_the_ablation_or_add_a_generalist() -> None:
    assert settings_for("b+hp+lf", "seq-cifar10", 200, {"net.pretrained": True}).half_pipe is True
    er = settings_for("er", "seq-cifar10", 200, {"net.pretrained": True})
    assert (er.generalist, er.half_pipe) == ("none", None)
    added = settings_for("er", "seq-cifar10", 200, {"net.pretrained": True, "generalist": "tangent"})
    assert not added.redraws_classifier


def test_itl_is_offline_er_and_itl_l_is_derpp() -> None:
    itl, itl_l = settings_for("itl", "seq-cifar10", 200), settings_for("itl-l", "seq-cifar10", 200)
    assert (itl.specialist.name, itl.memory.policy, itl.memory.logits) == ("er-separate", "stratified", None)
    assert (itl_l.specialist.name, itl_l.memory.policy, itl_l.memory.logits) == ("derpp", "reservoir", True)
    assert (itl.tangent.alpha, itl.tangent.beta) == (0.0, 1.0)
    assert (itl_l.tangent.alpha, itl_l.tangent.beta) == (1.0, 1.0)  # the paper: alpha_tg = beta_tg = 1
    for settings in (itl, itl_l):
        assert (settings.generalist, settings.redraws_classifier, settings.projects) == ("tangent", True, True)
        assert settings.tangent.layers == 2
        assert (settings.specialist.batch, settings.specialist.replay, settings.specialist.epochs) == (32, 32, 50)
        assert (settings.tangent.batch, settings.projection.batch) == (32, 32)
        assert settings.projection.over == "memory"
        assert settings.augment.task == settings.augment.memory == "stream"


@pytest.mark.parametrize("buffer", BUFFERS)
@pytest.mark.parametrize("stream", ["seq-cifar10", "seq-tinyimagenet"])
def test_itl_l_has_the_weights_of_derpp_and_the_epochs_of_the_paper(stream: str, buffer: int) -> None:
    itl_l, derpp = (settings_for(m, stream, buffer).specialist for m in ("itl-l", "derpp"))
    assert (itl_l.alpha, itl_l.beta) == (derpp.alpha, derpp.beta)
    assert itl_l.epochs == settings_for("itl", stream, buffer).specialist.epochs == 50


def test_overrides_take_precedence() -> None:
    assert settings_for("derpp", "seq-cifar10", 200, {"specialist.alpha": 0.9}).specialist.alpha == 0.9
    assert settings_for("er", "seq-cifar10", 200, {"generalist": "tangent"}).projects
