"""Methods are found without importing them, and every source of methods describes them in the same way."""

from __future__ import annotations

import ast
import itertools
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest

from itl import UserError, method_catalog, presets, specialists, static_attributes
from itl.method_catalog import MethodInfo
from itl.specialists.er import ER


def offer(monkeypatch: pytest.MonkeyPatch, specialist: type, name: str, group: str = "itl.methods") -> None:
    """Let an entry point of another package refer to `specialist`."""
    module = ModuleType("my_package")
    module.Offered = specialist  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "my_package", module)
    points = [EntryPoint(name, "my_package:Offered", group)]
    monkeypatch.setattr(
        "itl._deprecated.entry_points", lambda group: [point for point in points if point.group == group]
    )


class Tuned(ER):
    name = "er-tuned"
    summary = "er with another learning rate"
    based_on = "er"
    defaults: ClassVar[Any] = {"specialist.lr": 0.07}
    stream_defaults: ClassVar[Any] = {("seq-tinyimagenet", 500): {"specialist.momentum": 0.5}}


def test_static_description_equals_the_class_attributes() -> None:
    for name, (info, *_) in method_catalog.built_in().items():
        found = specialists.find(name)
        assert MethodInfo.of(found) == info
        assert found.name == name


def test_names_and_defaults_are_read_without_torch() -> None:
    program = "import sys; from itl import presets; presets.settings_for('x-der', 'seq-cifar100', 500)"
    program += "; assert 'torch' not in sys.modules and 'itl.specialists' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


@pytest.mark.parametrize("name", method_catalog.built_in())
def test_attributes_and_options_read_from_the_source_are_those_of_the_class(name: str) -> None:
    found = specialists.find(name)
    for attribute in ("stores_logits", "stores_logits_at_task_end", "capturable", "needs_memory", "data"):
        assert method_catalog.class_attribute(name, attribute) == getattr(found, attribute)
    listed, defaults = method_catalog.option_defaults(name), found.Options().model_dump()
    assert [(key, type(value), value) for key, value in listed.items()] == [
        (key, type(value), value) for key, value in defaults.items()
    ]


def test_attributes_are_inherited_in_the_order_of_python(tmp_path: Path) -> None:
    code = "class Base:\n    a = 1\n    b = 2\n    c: int\nclass Child(Other, Base):\n    b = 3\n"
    (tmp_path / "file.py").write_text(code)
    values = {name: static_attributes.inherited(tmp_path, "Child", name) for name in "abc"}
    assert {name: value and ast.literal_eval(value) for name, value in values.items()} == {"a": 1, "b": 3, "c": None}


def test_listed_settings_are_those_of_a_run() -> None:
    for name, stream, size in itertools.product(presets.METHODS, ("seq-cifar10", "seq-cifar100"), (200, 500)):
        settings = presets.settings_for(name, stream, size)
        assert specialists.with_option_defaults(settings) == specialists.resolve_options(settings)


def test_attribute_that_is_not_a_literal_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wrong.py").write_text('class Wrong:\n    name = "wrong"\n    defaults = dict(a=1)\n')
    monkeypatch.setattr(method_catalog, "SPECIALISTS_FOLDER", tmp_path)
    with pytest.raises(ValueError, match=r"wrong\.py, line 3: Wrong\.defaults must be a literal"):
        method_catalog.built_in.__wrapped__()


def test_based_on_inherits_everything_that_the_method_does_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(method_catalog, "REGISTERED", {})
    specialists.register(Tuned)
    plain, tuned = (presets.settings_for(name, "seq-tinyimagenet", 500) for name in ("er", "er-tuned"))
    expected = {"name": "er-tuned", "lr": 0.07, "momentum": 0.5}  # er's learning rate for the stream does not win
    assert tuned == plain.model_copy(update={"specialist": plain.specialist.model_copy(update=expected)})
    assert presets.names()[-1] == "er-tuned"
    with pytest.raises(UserError, match="already a method 'er'"):
        specialists.register(ER)


def test_plug_in_brings_its_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, Tuned, "er-tuned")
    assert presets.settings_for("er-tuned", None, 8).specialist.lr == 0.07
    assert presets.all_methods()[-1].summary == Tuned.summary
    assert specialists.find("er-tuned") is Tuned


def test_plug_in_with_a_mistake_is_named_and_does_not_hide_others(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, Tuned, "other")
    with pytest.raises(UserError, match="calls itself 'er-tuned'"):
        presets.get("other")
    with pytest.warns(UserWarning, match="calls itself"):
        assert [method.name for method in presets.all_methods()] == list(presets.METHODS)
    offer(monkeypatch, int, "number")
    with pytest.raises(UserError, match=r"number .* is not a Specialist; fix or uninstall its package"):
        presets.get("number")
    offer(monkeypatch, type("Bare", (ER,), {"name": "bare"}), "bare")
    with pytest.raises(UserError, match="has no defaults; set `defaults`, or `based_on`"):
        presets.get("bare")


def test_old_entry_point_group_still_provides_specialists(monkeypatch: pytest.MonkeyPatch) -> None:
    bare = type("Bare", (ER,), {"name": "bare"})
    offer(monkeypatch, bare, "bare", "itl.specialists")
    with pytest.warns(DeprecationWarning, match=r"itl\.specialists"):
        assert specialists.find("bare") is bare
    with (
        pytest.warns(DeprecationWarning, match="deprecated"),
        pytest.raises(UserError, match=r"--set specialist\.name=bare"),
    ):
        presets.get("bare")


def test_specialist_without_defaults_is_not_a_method() -> None:
    assert "er-separate" in specialists.names()
    assert "er-separate" not in presets.METHODS
    with pytest.raises(UserError, match="Unknown method 'er-separate'"):
        presets.get("er-separate")
