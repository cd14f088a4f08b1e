"""Tests of the registry of memory policies and of its entry points."""

from __future__ import annotations

import subprocess
import sys
import warnings
from importlib.metadata import EntryPoint
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from itl import UserError, _deprecated
from itl.memory import MemoryPolicy, Slots, get_policy, policy_names, policy_sets, policy_summaries
from itl.memory.registry import ENTRY_POINT_GROUP
from support.tiny import tiny_learner, tiny_stream


def add_policy(monkeypatch: pytest.MonkeyPatch, policy: object) -> None:
    """Register `policy` as the entry point `added` of a package `plugin`."""
    module = ModuleType("plugin")
    module.__dict__["policy"] = policy
    monkeypatch.setitem(sys.modules, "plugin", module)
    points = [EntryPoint("added", "plugin:policy", ENTRY_POINT_GROUP)]
    monkeypatch.setattr(_deprecated, "entry_points", lambda group: points if group == ENTRY_POINT_GROUP else [])


def first_rows(slots: Slots, labels: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Fill the memory with the first rows of the task."""
    count = min(slots.size, len(labels))
    return np.arange(count), np.arange(count)


class FirstRows(MemoryPolicy):
    def select_at_task_end(self, slots: Slots, labels: np.ndarray, rng: np.random.Generator, outputs: Any) -> Any:
        return first_rows(slots, labels, rng)


def test_names_and_summaries_need_no_torch() -> None:
    code = (
        "import sys; from itl.memory import policy_names, policy_summaries; "
        "assert set(policy_names()) == set(policy_summaries()); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", policy_summaries())
def test_every_policy_is_a_memory_policy_with_a_docstring(name: str) -> None:
    policy = get_policy(name)
    assert isinstance(policy, MemoryPolicy)
    assert type(policy).__doc__
    assert policy is get_policy(name)


def test_policies_differ_in_when_they_select() -> None:
    found = {name: get_policy(name) for name in policy_names()}
    assert {n for n, p in found.items() if p.plans_writes} == {"reservoir", "ring", "loss-aware", "gss"}
    assert {n for n, p in found.items() if p.candidates_class} == {"entropy", "coreset", "gcr"}
    assert {n for n, p in found.items() if p.selector_class} == {"loss-aware", "gss"}
    assert {n for n, p in found.items() if p.assigns_weights} == {"coreset", "gcr"}


@pytest.mark.parametrize("name", policy_names())
def test_attributes_read_from_the_source_are_those_of_the_policy(name: str) -> None:
    for attribute in ("assigns_weights", "selector_class", "candidates_class"):
        assert policy_sets(name, attribute) is bool(getattr(get_policy(name), attribute))


@pytest.mark.parametrize("policy", [FirstRows, FirstRows()])
def test_entry_point_adds_a_policy(monkeypatch: pytest.MonkeyPatch, policy: object) -> None:
    add_policy(monkeypatch, policy)
    assert policy_names()[-1] == "added"
    learner = tiny_learner("er", memory__policy="added")
    learner.learn(tiny_stream().tasks[0])
    assert learner.memory.slots.row.tolist() == list(range(8))


def test_entry_point_may_be_a_policy_of_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interface before policies were classes."""
    with pytest.warns(DeprecationWarning, match=r"itl\.memory\.Policy is deprecated"):
        from itl.memory import Policy  # type: ignore[attr-defined]
    with pytest.warns(DeprecationWarning, match="argument at_end"):
        policy = Policy("the first rows", at_end=first_rows)
    add_policy(monkeypatch, policy)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not get_policy("added").plans_writes
        learner = tiny_learner("er", memory__policy="added")
        learner.learn(tiny_stream().tasks[0])
    assert learner.memory.slots.row.tolist() == list(range(8))


def test_entry_point_of_another_kind_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    add_policy(monkeypatch, object())
    with pytest.raises(UserError, match=r"memory policy added .* is not a MemoryPolicy"):
        get_policy("added")


def test_unknown_policy_suggests_the_nearest_name() -> None:
    with pytest.raises(UserError, match=r"entropi.*entropy"):
        get_policy("entropi")
