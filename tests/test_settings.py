"""Settings: validation, parsing, overriding, and error messages that name the setting."""

from __future__ import annotations

import re

import pytest

from itl import Learner, UserError
from itl.errors import unknown
from itl.settings import build, check_name, flatten, names, parse


@pytest.mark.parametrize("name", names())
def test_invalid_value_is_refused_in_one_line_that_names_the_setting(name: str) -> None:
    with pytest.raises(UserError) as caught:
        build({name: [object]})
    assert f"Setting {name} =" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("specialist.lr", 0),
        ("specialist.lr", -0.1),
        ("specialist.lr", float("nan")),
        ("specialist.lr", float("inf")),
        ("specialist.lr", "fast"),
        ("specialist.epochs", 0),
        ("specialist.epochs", 1.5),
        ("specialist.epochs", True),
        ("specialist.epochs", "3"),
        ("specialist.lr", True),
        ("specialist.momentum", 1.0),
        ("specialist.draws", 0),
        ("specialist.reduction", "median"),
        ("tangent.layers", 0),
        ("tangent.l2", -1),
        ("projection.over", "world"),
        ("projection.schedule", "linear"),
        ("augment.padding", -1),
        ("augment.fill", 256),
        ("net.width", 0),
        ("generalist", "tangents"),
        ("precision", "fp8"),
        ("half_pipe", "perhaps"),
    ],
)
def test_value_out_of_range_is_refused(name: str, value: object) -> None:
    with pytest.raises(UserError, match=f"Setting {name} = "):
        build({name: value})


@pytest.mark.parametrize(
    ("wrong", "suggestion"),
    [
        ("specialist.learning_rate", "specialist"),
        ("specialist.lrr", "specialist.lr"),
        ("tangent.epoch", "tangent.epochs"),
        ("generalists", "generalist"),
        ("projecton.over", "projection.over"),
    ],
)
def test_unknown_setting_suggests_the_nearest_name(wrong: str, suggestion: str) -> None:
    with pytest.raises(UserError, match=f"Unknown setting '{wrong}'. Did you mean '.*{suggestion}"):
        build({wrong: 1})


def test_parse_converts_text_to_values() -> None:
    pairs = ["specialist.lr=.1", "specialist.epochs=3", "half_pipe=true", "project=False", "tangent.layers=null"]
    pairs += [
        "tangent.l2=1e-5",
        "memory.policy=none",
        "net.name = resnet8",
        "augment.task=none",
        "specialist.steps=NULL",
    ]
    values = parse(pairs)
    assert values["specialist.lr"] == 0.1
    assert values["half_pipe"] is True
    assert values["project"] is False
    assert values["tangent.layers"] is None
    assert values["specialist.steps"] is None
    settings = build({"generalist": "tangent"}, values)
    assert settings.tangent.l2 == 1e-5
    assert settings.memory.policy == "none"
    assert settings.net.name == "resnet8"
    assert settings.augment.task is None


@pytest.mark.parametrize("text", ["specialist.lr", "=3", ""])
def test_parse_refuses_a_setting_without_value(text: str) -> None:
    with pytest.raises(UserError, match="Settings have the form key=value"):
        parse([text])


def test_later_layers_override_earlier_ones() -> None:
    settings = build({"specialist": {"lr": 0.1, "epochs": 3}}, {"specialist.lr": 0.2}, {"specialist": {"batch": 5}})
    assert (settings.specialist.lr, settings.specialist.epochs, settings.specialist.batch) == (0.2, 3, 5)
    assert flatten({"a": {"b": {"c": 1}}, "d": 2}) == {"a.b.c": 1, "d": 2}


@pytest.mark.parametrize("extra", [{"project": True}, {"half_pipe": True}])
def test_projection_without_generalist_is_refused(extra: dict[str, bool]) -> None:
    with pytest.raises(UserError, match="generalist=none"):
        build({"generalist": "none", **extra})


@pytest.mark.parametrize(
    ("values", "redraws", "projects"),
    [
        ({"generalist": "tangent"}, True, True),
        ({"generalist": "full"}, False, False),
        ({"generalist": "linear"}, False, False),
        ({"generalist": "none"}, False, False),
        ({"generalist": "tangent", "half_pipe": False}, False, True),
        ({"generalist": "linear", "project": True}, False, True),
    ],
)
def test_half_pipe_and_projection_default_to_the_tangent_generalist(
    values: dict[str, object], redraws: bool, projects: bool
) -> None:
    settings = build(values)
    assert (settings.redraws_classifier, settings.projects) == (redraws, projects)


def test_settings_are_immutable() -> None:
    with pytest.raises(Exception, match="frozen"):
        build({}).specialist.lr = 3.0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("derp", "Did you mean 'derpp', 'der' or 'er'?"),
        ("agm", "Did you mean 'agem' or 'gem'?"),
        ("joit", "Did you mean 'joint'?"),
        ("no", "Known: agem, der, derpp, er, gem, joint."),
    ],
)
def test_unknown_name_is_reported_with_the_closest_names(name: str, hint: str) -> None:
    known = ["agem", "der", "derpp", "er", "gem", "joint"]
    assert str(unknown("method", name, known)) == f"Unknown method '{name}'. {hint}"


def test_learner_refuses_invalid_arguments_at_construction() -> None:
    with pytest.raises(UserError, match=r"Unknown method 'ilt'. Did you mean 'itl"):
        Learner("ilt")
    with pytest.raises(UserError, match=r"Setting specialist\.lr = -1"):
        Learner("itl", settings={"specialist.lr": -1})
    with pytest.raises(UserError, match="must not be negative"):
        Learner("itl", buffer=-1)


def test_unknown_setting_names_the_nearest_three() -> None:
    for name, nearest in (("lr", "specialist.lr"), ("epochs", "specialist.epochs"), ("net.nam", "net.name")):
        with pytest.raises(UserError) as error:
            check_name(name)
        listed = re.findall(r"'([\w.]+)'", str(error.value))[1:]
        assert len(listed) == 3
        assert nearest in listed
