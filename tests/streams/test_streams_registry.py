"""Tests of the stream registry and of its entry points."""

import json
import sys
from importlib.metadata import EntryPoint
from types import ModuleType

import pytest

from itl import _deprecated, streams
from itl.errors import UserError
from itl.streams import registry


def add(monkeypatch: pytest.MonkeyPatch, **sources: object) -> None:
    """Register these objects as streams of a package `plugin`."""
    module = ModuleType("plugin")
    for name, source in sources.items():
        setattr(module, name, source)
    monkeypatch.setitem(sys.modules, "plugin", module)
    points = [EntryPoint(f"seq-{name}", f"plugin:{name}", registry.ENTRY_POINT_GROUP) for name in (*sources, "broken")]
    monkeypatch.setattr(
        _deprecated, "entry_points", lambda group: points if group == registry.ENTRY_POINT_GROUP else []
    )


def test_describe_needs_no_files():
    rows = {row["name"]: row for row in streams.describe()}
    assert list(rows) == streams.names()
    assert rows["seq-tinyimagenet"]["classes"] == 200
    tasks = {name: row["tasks"] for name, row in rows.items()}
    assert tasks == {
        "seq-digits": 5,
        "seq-cifar10": 5,
        "seq-cifar100": 10,
        "seq-tinyimagenet": 10,
        "seq-mnist": 5,
        "seq-fmnist": 5,
    }
    assert [row["policy"] for row in rows.values()] == [None, "cifar10", "cifar10", "imagenet", None, None]
    assert [row["padding"] for row in rows.values()] == [1, 4, 4, 4, 2, 2]
    assert json.dumps(list(rows.values()))


def test_describe_agrees_with_the_loaded_stream():
    row = next(row for row in streams.describe() if row["name"] == "seq-digits")
    stream = streams.load("seq-digits")
    assert row["shape"] == stream.shape
    assert (row["classes"], row["tasks"]) == (stream.classes, len(stream))
    assert row["train"] == sum(len(task.train) for task in stream)
    assert row["test"] == sum(len(task.test) for task in stream)


def test_unknown_stream_suggests_the_nearest_name():
    with pytest.raises(UserError, match="Did you mean 'seq-cifar10"):
        streams.load("seq-cifar1O")


def test_entry_point_adds_a_stream(monkeypatch: pytest.MonkeyPatch):
    add(monkeypatch, mine=registry.find("seq-digits"))
    assert "seq-mine" in streams.names()
    stream = streams.load("seq-mine", tasks=2)
    assert (stream.name, len(stream)) == ("seq-mine", 2)


def test_broken_entry_point_is_reported_and_does_not_hide_others(monkeypatch: pytest.MonkeyPatch):
    add(monkeypatch, wrong=object())
    with pytest.raises(UserError, match=r"seq-broken .* cannot be loaded"):
        streams.load("seq-broken")
    with pytest.raises(UserError, match=r"is not a DatasetSource"):
        streams.load("seq-wrong")
    with pytest.warns(UserWarning, match="seq-") as caught:
        rows = streams.describe()
    assert len(caught) == 2
    assert [row["name"] for row in rows] == list(registry.BUILT_IN)


def test_multi_line_import_error_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch):
    def fail(point: EntryPoint) -> object:
        raise ImportError("first\nsecond")

    add(monkeypatch)
    monkeypatch.setattr(EntryPoint, "load", fail)
    with pytest.raises(UserError, match="first second") as caught:
        streams.load("seq-broken")
    assert "\n" not in str(caught.value)


def test_entry_point_cannot_replace_a_built_in_stream(monkeypatch: pytest.MonkeyPatch):
    add(monkeypatch, digits=object())
    assert streams.load("seq-digits").classes == 10
    assert streams.names().count("seq-digits") == 1
