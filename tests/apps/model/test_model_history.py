"""The history of a model folder that may come from anybody."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from itl import UserError
from itl.apps.model import Model
from itl.apps.teaching.held_out_evaluation import accuracies_by_lesson, accuracy_when_taught
from itl.checkpoint import store
from support.command_line import assert_refused, run_in_process
from support.image_folders import write_images
from support.tiny import TINY
from support.tiny_model import trained_model


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_model(tmp_path_factory.mktemp("history") / "m", settings=TINY).path


@pytest.fixture
def model(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(trained, tmp_path / "m")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "m"


def edit_metadata(model: Path, **changes: Any) -> None:
    generation = model / store.current(model)
    state = json.loads((generation / "state.json").read_text())
    state["notes"]["model"].update(changes)
    (generation / "state.json").write_text(json.dumps(state))
    store.write_checksums(generation)
    store.set_current(model, generation.name)


def test_refused_entry_leaves_a_lesson_unfinished(model: Path) -> None:
    opened = Model.open(model, device="cpu")
    opened.pending = {"fingerprint": "abc"}
    with pytest.raises(UserError, match="pass a value of the right type"):
        opened.finish({"folder": "x", "name": 3, "classes": {}})
    assert opened.pending == {"fingerprint": "abc"}
    opened.finish({"folder": "x", "name": "x", "classes": {}})
    assert (opened.history[-1]["fingerprint"], opened.pending) == ("abc", None)


LESSON = {"what": "learn", "folder": "x", "name": "x", "classes": {"cat": 2}}
ENTRIES: dict[str, dict[str, Any]] = {
    "rename without names": {"what": "rename"},
    "merge of a list": {"what": "merge", "old": {}, "new": [1]},
    "resize to nothing": {"what": "resize", "before": 3, "size": None},
    "repair of text": {"what": "repair", "images": "1"},
    "forget of a list": {"what": "forget", "images": 1, "classes": ["cat"]},
    "lesson without counts": {**LESSON, "classes": {"cat": "2"}},
    "lesson with a list of classes": {**LESSON, "classes": [1]},
    "lesson with a number for accuracies": {**LESSON, "accuracy": 3.0},
    "lesson with text for an accuracy": {**LESSON, "accuracy": {"task": "high"}},
    "lesson in a list of folders": {**LESSON, "folder": [["x"]]},
    "lesson with hashes by number": {**LESSON, "beyond": {"cat": 5}},
    "lesson with two fingerprints": {**LESSON, "fingerprint": ["a", "b"]},
}


@pytest.mark.parametrize("name", ENTRIES)
def test_malformed_entry_is_refused_and_can_be_undone(model: Path, name: str) -> None:
    edit_metadata(model, history=[{**ENTRIES[name], "date": "2026-01-31"}] * 2)
    for command in (["info", "m"], ["rename", "m", "cat", "lynx"], ["forget", "m", "--class", "cat"], ["report", "m"]):
        assert_refused(*command, word="an entry of the history is not valid")
    outcome = run_in_process("undo", "m")
    assert (outcome.code, outcome.out) == (0, "undone: a change that cannot be shown\n")
    assert run_in_process("info", "m").code == 0


def test_undo_of_a_state_without_a_model(model: Path) -> None:
    generation = model / store.current(model)
    state = json.loads((generation / "state.json").read_text())
    (generation / "state.json").write_text(json.dumps({**state, "notes": []}))
    store.write_checksums(generation)
    store.set_current(model, generation.name)
    assert_refused("info", "m")
    assert run_in_process("undo", "m").code == 0
    assert run_in_process("info", "m").code == 0


def test_facts_of_a_python_program_are_kept_and_shown(model: Path) -> None:
    Model.open(model).finish({"accuracy": 93.5, "classes": ["cat"]})
    opened = Model.open(model)
    assert opened.history[-1]["accuracy"] == 93.5
    assert accuracies_by_lesson(opened) == []
    assert accuracy_when_taught(opened, "cat") is None
    assert "accuracy 93.5" in run_in_process("info", "m").out


def test_entry_that_could_not_be_read_is_not_saved(model: Path) -> None:
    opened = Model.open(model)
    with pytest.raises(UserError, match="old"):
        opened.add_history_entry("rename", new="lynx")
    assert len(opened.history) == 2


@pytest.mark.parametrize("temperature", [1e-320, 1e300, float("nan")])
def test_temperature_that_makes_probabilities_undefined_is_refused(model: Path, temperature: float) -> None:
    Model.open(model).predict_proba(np.zeros((1, 3, 8, 8), np.uint8))
    edit_metadata(model, calibration={"temperature": temperature})
    with pytest.raises(UserError, match=r"calibration\.temperature"):
        Model.open(model)


PENDING: dict[str, Any] = {
    "plan": 3,
    "at": "1",
    "new": None,
    "room": [],
    "buffer": "many",
    "tested": "yes",
    "what": ["x"],
    "folder": {},
    "replayed": 7,
    "replayed_rows": "0g",
}


@pytest.mark.parametrize("key", PENDING)
def test_malformed_unfinished_lesson_is_refused_and_can_be_undone(model: Path, key: str) -> None:
    edit_metadata(model, pending={"fingerprint": "0", key: PENDING[key]})
    with pytest.raises(UserError, match=f"not valid: pending: .*{key}: "):
        Model.open(model)
    assert run_in_process("undo", "m").code == 0


def test_note_that_could_not_be_read_is_not_saved(model: Path) -> None:
    with pytest.raises(UserError, match="cannot be saved: room: "):
        Model.open(model).teach(torch.zeros(4, 3, 8, 8, dtype=torch.uint8), ["cat"] * 4, {"room": "large"})
    assert run_in_process("info", "m").code == 0


@pytest.mark.parametrize("notes", [{"minutes": "5"}, {"minutes": float("nan")}, {"minutes": -1}, {"own settings": [1]}])
def test_malformed_notes_of_earlier_lessons_are_refused(model: Path, tmp_path: Path, notes: dict[str, Any]) -> None:
    write_images(tmp_path / "day", "cat", "dog", each=2)
    generation = model / store.current(model)
    state = json.loads((generation / "state.json").read_text())
    state["notes"].update(notes)
    (generation / "state.json").write_text(json.dumps(state))
    store.write_checksums(generation)
    store.set_current(model, generation.name)
    assert_refused("learn", "m", "day", "--epochs", "1", word="the model folder m is damaged")
