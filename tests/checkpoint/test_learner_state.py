"""Saved learners: loading, exact resumption after an interruption, and errors for damaged folders."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import itl
from itl import Learner, UserError, presets
from itl.callbacks.base import Callback
from itl.checkpoint.store import read, set_current, write, write_checksums
from itl.learner import max_tensor_bytes
from support.damage import flip_bit
from support.tiny import (
    Interrupted,
    LambdaCallback,
    differing_keys,
    learner_snapshot,
    tiny_images,
    tiny_learner,
    tiny_stream,
)

METHODS = ["itl", "itl-l", "b+hp+ff+pd"]
STAGES = {
    "itl": ["specialist", "tangent", "projection"],
    "itl-l": ["specialist", "tangent", "projection"],
    "b+hp+ff+pd": ["specialist", "full", "projection"],
    "b+ff": ["specialist", "full"],
    "b+hp+lf": ["specialist", "linear"],
    "derpp": ["specialist"],
}
MOMENTA = {"specialist__momentum": 0.9, "tangent__momentum": 0.9, "projection__momentum": 0.9}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the learner of each method after the first task."""
    return tmp_path_factory.mktemp("saved")


@pytest.fixture(scope="module")
def uninterrupted(saved: Path) -> dict[str, dict[str, torch.Tensor]]:
    """Final state of each method on the tiny stream, without interruption."""
    out = {}
    for method in STAGES:
        learner = tiny_learner(method, **MOMENTA)
        first, second = tiny_stream().tasks
        learner.learn(first)
        learner.save(saved / method)
        learner.learn(second)
        out[method] = learner_snapshot(learner)
    return out


@pytest.mark.parametrize("method", ["sgd", "er", *METHODS])
def test_loaded_learner_predicts_the_same(method: str, tmp_path: Path) -> None:
    stream = tiny_stream()
    learner = tiny_learner(method)
    learner.learn(stream.tasks[0])
    learner.save(tmp_path / "model")
    loaded = itl.load(tmp_path / "model", device="cpu")
    assert torch.equal(loaded.logits(stream.tasks[0].test), learner.logits(stream.tasks[0].test))
    assert differing_keys(learner_snapshot(loaded), learner_snapshot(learner)) == set()
    assert loaded.tasks == learner.tasks
    assert loaded.settings == learner.settings
    images = tiny_images(4, 3)[0]
    assert (loaded.predict_proba(images) == learner.predict_proba(images)).all()


@pytest.mark.parametrize("method", list(STAGES))
def test_learner_resumes_exactly_between_tasks(method: str, uninterrupted: dict[str, Any], saved: Path) -> None:
    loaded = itl.load(saved / method, device="cpu")
    loaded.learn(tiny_stream().tasks[1])
    assert differing_keys(learner_snapshot(loaded), uninterrupted[method]) == set()


def interruptions() -> list[tuple[str, str, int]]:
    """(method, stage, epoch): after the first round of every stage and, for three methods, after the last."""
    cases = [(method, stage, epoch) for method, stages in STAGES.items() for stage in stages for epoch in (1, 2)]
    return [(method, stage, epoch) for method, stage, epoch in cases if epoch == 1 or method in METHODS]


@pytest.mark.parametrize(("method", "stage", "epoch"), interruptions())
def test_learner_resumes_exactly_within_any_stage(
    method: str, stage: str, epoch: int, tmp_path: Path, uninterrupted: dict[str, Any], saved: Path
) -> None:
    def save_and_stop(event: str, learner: Learner, name: str | None, done: int) -> None:
        if (event, name, done) == ("on_round_end", stage, epoch):
            learner.save(tmp_path)
            raise Interrupted

    task = tiny_stream().tasks[1]
    learner = itl.load(saved / method, device="cpu", callback=LambdaCallback(save_and_stop))
    with pytest.raises(Interrupted):
        learner.learn(task)
    loaded = itl.load(tmp_path, device="cpu")
    assert loaded.position[1] == epoch
    assert torch.equal(loaded.logits(task.test), learner.logits(task.test))  # of the model in training
    loaded.learn(task)
    assert differing_keys(learner_snapshot(loaded), uninterrupted[method]) == set()
    learner.callback = Callback()
    learner.learn(task)  # the interrupted learner itself can continue, too
    assert differing_keys(learner_snapshot(learner), uninterrupted[method]) == set()


@pytest.mark.parametrize("method", ["itl", "b+hp+ff+pd"])
def test_learner_saved_before_projection_predicts_as_the_generalist(method: str, tmp_path: Path) -> None:
    logits: list[torch.Tensor] = []
    task = tiny_stream().tasks[0]

    def save_and_stop(event: str, learner: Learner, name: str | None, done: int) -> None:
        if event == "on_stage_end" and name not in ("specialist", "projection"):
            logits.append(learner.logits(task.test))
        if (event, name) == ("on_stage_start", "projection"):
            learner.save(tmp_path)
            raise Interrupted

    with pytest.raises(Interrupted):
        tiny_learner(method, callback=LambdaCallback(save_and_stop)).learn(task)
    loaded = itl.load(tmp_path, device="cpu")
    assert loaded.position == ("projection", 0)
    assert torch.equal(loaded.logits(task.test), logits[-1])


def test_unfinished_task_must_be_finished_before_another(tmp_path: Path) -> None:
    def stop(event: str, learner: Learner, name: str | None, done: int) -> None:
        if event == "on_round_end":
            raise Interrupted

    first, second = tiny_stream().tasks
    learner = tiny_learner("itl", callback=LambdaCallback(stop))
    with pytest.raises(Interrupted):
        learner.learn(first)
    with pytest.raises(UserError, match="unfinished"):
        learner.learn(second)


@pytest.mark.parametrize("when", [("on_stage_start", 0), ("on_round_end", 1), ("on_stage_end", 0)])
def test_interrupted_tangent_without_projection_restores_the_specialist(when: tuple[str, int], tmp_path: Path) -> None:
    def save_and_stop(event: str, learner: Learner, name: str | None, done: int) -> None:
        if name == "tangent" and (event, done) == when:
            learner.save(tmp_path)
            raise Interrupted

    task = tiny_stream().tasks[0]
    uninterrupted_learner, stopped = (
        tiny_learner(project=False),
        tiny_learner(project=False, callback=LambdaCallback(save_and_stop)),
    )
    uninterrupted_learner.learn(task)
    with pytest.raises(Interrupted):
        stopped.learn(task)
    loaded = itl.load(tmp_path, device="cpu")
    loaded.learn(task)
    assert differing_keys(learner_snapshot(loaded), learner_snapshot(uninterrupted_learner)) == set()


def test_settings_passed_to_load_override_the_saved_ones(tmp_path: Path) -> None:
    learner = tiny_learner("itl", projection={"lr": 0.02, "epochs": 2})
    learner.learn(tiny_stream().tasks[0])
    learner.save(tmp_path)
    loaded = itl.load(tmp_path, device="cpu", settings={"projection": {"epochs": 7}})
    assert loaded.settings.projection.epochs == 7
    assert loaded.settings.projection.lr == 0.02  # not overridden
    assert loaded.settings.net == learner.settings.net


def test_untrained_learner_cannot_be_saved(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="learned nothing yet"):
        tiny_learner().save(tmp_path / "model")
    assert not (tmp_path / "model").exists()


# ---------------------------------------------------------------------- model folders


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("original") / "model"
    learner = tiny_learner("itl-l")
    learner.learn(tiny_stream().tasks[0])
    learner.save(folder)
    return folder


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    """A copy of a model folder, to damage."""
    return Path(shutil.copytree(original, tmp_path / "model"))


def generation(folder: Path) -> Path:
    return folder / (folder / "CURRENT").read_text().split()[0]


def update_checksums(folder: Path) -> None:
    """Write checksums that match the current content, as after a deliberate edit."""
    write_checksums(generation(folder))
    set_current(folder, generation(folder).name)


def load_error(folder: Path) -> str:
    """Message of the error when the folder is loaded, which must be one line."""
    with pytest.raises(UserError) as caught:
        itl.load(folder, device="cpu")
    message = str(caught.value)
    assert message
    assert "\n" not in message
    return message


def test_folder_contains_one_generation_and_its_name(folder: Path) -> None:
    assert sorted(p.name for p in folder.iterdir()) == ["CURRENT", "generation-000001"]
    assert sorted(p.name for p in generation(folder).iterdir()) == ["SHA256SUMS", "state.json", "tensors.safetensors"]
    text = (generation(folder) / "state.json").read_text()
    assert str(folder) not in text
    assert os.path.expanduser("~") not in text


def test_second_save_replaces_the_generation(folder: Path) -> None:
    itl.load(folder, device="cpu").save(folder)
    assert sorted(p.name for p in folder.iterdir()) == ["CURRENT", "generation-000002"]


def test_failed_write_leaves_the_old_state(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = itl.load(folder, device="cpu")
    before = learner_snapshot(learner)

    def fail_with_full_disk(*_: object) -> None:
        raise OSError(28, "No space left on device")

    for function in ("save", "create_file", "write_checksums", "write_text_atomic", "set_current", "flush_to_disk"):
        with monkeypatch.context() as patch:
            patch.setattr(f"itl.checkpoint.store.{function}", fail_with_full_disk)
            with pytest.raises(UserError, match="No space left on device"):
                learner.save(folder)
        assert differing_keys(learner_snapshot(itl.load(folder, device="cpu")), before) == set()


def test_truncated_tensors_are_detected(folder: Path) -> None:
    path = generation(folder) / "tensors.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    assert "damaged" in load_error(folder)


def test_flipped_bit_is_detected(folder: Path) -> None:
    flip_bit(generation(folder) / "tensors.safetensors", -50)
    assert "damaged" in load_error(folder)


def edit_state(folder: Path, **changes: object) -> None:
    path = generation(folder) / "state.json"
    state = json.loads(path.read_text())
    for name, value in changes.items():
        if value is None:
            del state[name]
        else:
            state[name] = value
    path.write_text(json.dumps(state))
    update_checksums(folder)


@pytest.mark.parametrize(
    "changes",
    [
        {"format": 99},
        {"method": "itll"},
        {"method": 3},
        {"method": None},
        {"buffer": 9},
        {"buffer": "many"},
        {"shape": [1]},
        {"shape": []},
        {"shape": [3, 8, 8]},
        {"traits": "none"},
        {"traits": {"mean": [0.5]}},
        {"outputs": 7},
        {"settings": {"no.such": 1}},
        {"settings": [1]},
        {"settings": {"net.width": 5}},
        {"position": ["lunch", 0]},
        {"position": ["specialist"]},
        {"position": 4},
        {"slots": {"count": 99, "seen": 0, "clock": 0}},
        {"slots": {"count": "a", "seen": 0, "clock": 0}},
        {"slots": [1, 2]},
        {"tasks": 5},
        {"tasks": [1]},
        {"notes": 5},
        {"seconds": "long"},
    ],
    ids=str,
)
def test_invalid_state_is_refused_in_one_line(folder: Path, changes: dict[str, object]) -> None:
    edit_state(folder, **changes)
    load_error(folder)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"format": 1}', "\x00\xff"])
def test_malformed_state_file_is_refused(folder: Path, text: str) -> None:
    (generation(folder) / "state.json").write_text(text, encoding="latin-1")
    load_error(folder)


@pytest.mark.parametrize("text", ["", "generation-000009", "../elsewhere", "/etc", "generation-1/../..", "\xff\xfe"])
def test_invalid_current_file_is_refused(folder: Path, text: str) -> None:
    (folder / "CURRENT").write_text(text, encoding="latin-1")
    load_error(folder)


@pytest.mark.parametrize("name", ["CURRENT", "state.json", "tensors.safetensors"])
def test_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name if name == "CURRENT" else generation(folder) / name).unlink()
    assert f"{name} is missing" in load_error(folder)


def test_missing_folder_is_refused(tmp_path: Path) -> None:
    assert "not a model folder" in load_error(tmp_path / "nothing")
    (tmp_path / "file").write_text("")
    load_error(tmp_path / "file")


def test_pickle_in_place_of_the_tensors_is_not_loaded(folder: Path, tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "exploded"),)

    path = generation(folder) / "tensors.safetensors"
    path.write_bytes(pickle.dumps(Bomb()))
    load_error(folder)
    update_checksums(folder)  # even with a matching checksum
    load_error(folder)
    assert not (tmp_path / "exploded").exists()


def test_tensors_with_wrong_names_or_shapes_are_refused(folder: Path, tmp_path: Path) -> None:
    tensors, state = read(folder)
    state = {k: v for k, v in state.items() if k != "format"}
    for name, value in (
        ("net.classifier.weight", torch.zeros(2, 2)),
        ("memory.pixels", torch.zeros(1, 1, 8, 8, dtype=torch.uint8)),
        ("slots.label", torch.zeros(3, dtype=torch.int64)),
    ):
        write(tmp_path / "other", {**tensors, name: value}, state)
        load_error(tmp_path / "other")
        write(tmp_path / "less", {k: v for k, v in tensors.items() if k != name}, state)
        load_error(tmp_path / "less")


def test_saved_learner_keeps_its_settings_if_defaults_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = tiny_learner("itl")
    learner.learn(tiny_stream().tasks[0])
    learner.save(tmp_path / "model")
    changed = dataclasses.replace(presets.METHODS["itl"], defaults={"net.name": "resnet18", "tangent.lr": 0.5})
    monkeypatch.setitem(presets.METHODS, "itl", changed)
    assert itl.load(tmp_path / "model", device="cpu").settings == learner.settings


def test_size_limit_of_a_default_model_is_below_8_gib() -> None:
    values = {
        "network": None, "settings": {"net.name": "resnet18"}, "method": "itl", "buffer": 21845, "seed": 0,
        "classes": None, "stream": "", "shape": [3, 32, 32], "outputs": 10,
    }  # fmt: skip
    assert 5 << 30 < max_tensor_bytes(values) < 8 << 30


def test_size_limit_allows_gram_matrices_of_many_random_features() -> None:
    width = 50_000
    values = {
        "network": None, "settings": {"net.name": "resnet18", "specialist.options.width": width}, "method": "ranpac",
        "buffer": 0, "seed": 0, "classes": None, "stream": "", "shape": [3, 32, 32], "outputs": 10,
    }  # fmt: skip
    assert max_tensor_bytes(values) > 8 * width**2
