"""A saved learner is the learner: same answers, same future to the last bit; a damaged folder is one clear line."""

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
from itl.checkpoint.store import point, read, seal, write
from support.tiny import LambdaCallback, differing_keys, learner_snapshot, tiny_images, tiny_learner, tiny_stream

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


class Interrupted(Exception):
    """Someone pulled the plug."""


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with each method's learner as it was after the first task."""
    return tmp_path_factory.mktemp("saved")


@pytest.fixture(scope="module")
def uninterrupted(saved: Path) -> dict[str, dict[str, torch.Tensor]]:
    """Where each method ends on the tiny stream, never stopped."""
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
def test_what_is_loaded_gives_the_same_answers(method: str, tmp_path: Path) -> None:
    stream = tiny_stream()
    learner = tiny_learner(method)
    learner.learn(stream.tasks[0])
    learner.save(tmp_path / "model")
    again = itl.load(tmp_path / "model", device="cpu")
    assert torch.equal(again.logits(stream.tasks[0].test), learner.logits(stream.tasks[0].test))
    assert differing_keys(learner_snapshot(again), learner_snapshot(learner)) == set()
    assert again.tasks == learner.tasks
    assert again.settings == learner.settings
    images = tiny_images(4, 3)[0]
    assert (again.predict_proba(images) == learner.predict_proba(images)).all()


@pytest.mark.parametrize("method", list(STAGES))
def test_learning_goes_on_after_a_task_as_if_never_stopped(
    method: str, uninterrupted: dict[str, Any], saved: Path
) -> None:
    again = itl.load(saved / method, device="cpu")
    again.learn(tiny_stream().tasks[1])
    assert differing_keys(learner_snapshot(again), uninterrupted[method]) == set()


def cases() -> list[tuple[str, str, int]]:
    """After the first round of every stage and, for three methods, after the last."""
    every = [(method, stage, epoch) for method, stages in STAGES.items() for stage in stages for epoch in (1, 2)]
    return [(method, stage, epoch) for method, stage, epoch in every if epoch == 1 or method in METHODS]


@pytest.mark.parametrize(("method", "stage", "epoch"), cases())
def test_learning_goes_on_from_the_middle_of_any_stage_as_if_never_stopped(
    method: str, stage: str, epoch: int, tmp_path: Path, uninterrupted: dict[str, Any], saved: Path
) -> None:
    def stop(event: str, learner: Learner, name: str | None, done: int) -> None:
        if (event, name, done) == ("on_round_end", stage, epoch):
            learner.save(tmp_path)
            raise Interrupted

    task = tiny_stream().tasks[1]
    learner = itl.load(saved / method, device="cpu", callback=LambdaCallback(stop))
    with pytest.raises(Interrupted):
        learner.learn(task)
    again = itl.load(tmp_path, device="cpu")
    assert again.position[1] == epoch
    assert torch.equal(again.logits(task.test), learner.logits(task.test))  # of the model that was learning
    again.learn(task)
    assert differing_keys(learner_snapshot(again), uninterrupted[method]) == set()
    learner.callback = Callback()
    learner.learn(task)  # and so does the learner that was stopped itself
    assert differing_keys(learner_snapshot(learner), uninterrupted[method]) == set()


@pytest.mark.parametrize("method", ["itl", "b+hp+ff+pd"])
def test_what_was_saved_before_anything_was_projected_answers_as_the_generalist(method: str, tmp_path: Path) -> None:
    told: list[torch.Tensor] = []
    task = tiny_stream().tasks[0]

    def stop(event: str, learner: Learner, name: str | None, done: int) -> None:
        if event == "on_stage_end" and name not in ("specialist", "projection"):
            told.append(learner.logits(task.test))
        if (event, name) == ("on_stage_start", "projection"):
            learner.save(tmp_path)
            raise Interrupted

    with pytest.raises(Interrupted):
        tiny_learner(method, callback=LambdaCallback(stop)).learn(task)
    again = itl.load(tmp_path, device="cpu")
    assert again.position == ("projection", 0)
    assert torch.equal(again.logits(task.test), told[-1])


def test_an_unfinished_task_must_be_finished_before_another(tmp_path: Path) -> None:
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
def test_tangent_without_projection_still_ends_at_the_specialist_when_stopped(
    when: tuple[str, int], tmp_path: Path
) -> None:
    def stop(event: str, learner: Learner, name: str | None, done: int) -> None:
        if name == "tangent" and (event, done) == when:
            learner.save(tmp_path)
            raise Interrupted

    task = tiny_stream().tasks[0]
    whole, stopped = tiny_learner(project=False), tiny_learner(project=False, callback=LambdaCallback(stop))
    whole.learn(task)
    with pytest.raises(Interrupted):
        stopped.learn(task)
    again = itl.load(tmp_path, device="cpu")
    again.learn(task)
    assert differing_keys(learner_snapshot(again), learner_snapshot(whole)) == set()


def test_settings_given_at_loading_win_over_the_saved_ones(tmp_path: Path) -> None:
    learner = tiny_learner("itl", projection={"lr": 0.02, "epochs": 2})
    learner.learn(tiny_stream().tasks[0])
    learner.save(tmp_path)
    again = itl.load(tmp_path, device="cpu", settings={"projection": {"epochs": 7}})
    assert again.settings.projection.epochs == 7
    assert again.settings.projection.lr == 0.02  # the others stay
    assert again.settings.net == learner.settings.net


def test_a_learner_that_has_learned_nothing_cannot_be_saved(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="learned nothing yet"):
        tiny_learner().save(tmp_path / "model")
    assert not (tmp_path / "model").exists()


# ---------------------------------------------------------------------- the folder


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("original") / "model"
    learner = tiny_learner("itl-l")
    learner.learn(tiny_stream().tasks[0])
    learner.save(folder)
    return folder


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    """A model folder to be damaged."""
    return Path(shutil.copytree(original, tmp_path / "model"))


def generation(folder: Path) -> Path:
    return folder / (folder / "CURRENT").read_text().split()[0]


def reseal(folder: Path) -> None:
    """Checksums that fit what is there now: someone meant it."""
    seal(generation(folder))
    point(folder, generation(folder).name)


def refused(folder: Path) -> str:
    with pytest.raises(UserError) as caught:
        itl.load(folder, device="cpu")
    message = str(caught.value)
    assert message
    assert "\n" not in message
    return message


def test_a_folder_holds_tensors_json_and_one_name(folder: Path) -> None:
    assert sorted(p.name for p in folder.iterdir()) == ["CURRENT", "generation-000001"]
    assert sorted(p.name for p in generation(folder).iterdir()) == ["SHA256SUMS", "state.json", "tensors.safetensors"]
    text = (generation(folder) / "state.json").read_text()
    assert str(folder) not in text
    assert os.path.expanduser("~") not in text


def test_saving_again_replaces_the_generation(folder: Path) -> None:
    itl.load(folder, device="cpu").save(folder)
    assert sorted(p.name for p in folder.iterdir()) == ["CURRENT", "generation-000002"]


def test_a_write_that_fails_leaves_the_old_state(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = itl.load(folder, device="cpu")
    before = learner_snapshot(learner)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    for broken in ("save_file", "write_text_atomic", "point", "flush_to_disk"):
        with monkeypatch.context() as patch:
            patch.setattr(f"itl.checkpoint.store.{broken}", full)
            with pytest.raises(UserError, match="No space left on device"):
                learner.save(folder)
        assert differing_keys(learner_snapshot(itl.load(folder, device="cpu")), before) == set()


def test_truncated_tensors_are_noticed(folder: Path) -> None:
    path = generation(folder) / "tensors.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    assert "damaged" in refused(folder)


def test_one_flipped_bit_is_noticed(folder: Path) -> None:
    path = generation(folder) / "tensors.safetensors"
    data = bytearray(path.read_bytes())
    data[-50] ^= 1
    path.write_bytes(bytes(data))
    assert "damaged" in refused(folder)


def edit(folder: Path, **changes: object) -> None:
    path = generation(folder) / "state.json"
    state = json.loads(path.read_text())
    for name, value in changes.items():
        if value is None:
            del state[name]
        else:
            state[name] = value
    path.write_text(json.dumps(state))
    reseal(folder)


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
def test_an_edited_state_is_refused_in_one_line(folder: Path, changes: dict[str, object]) -> None:
    edit(folder, **changes)
    refused(folder)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"format": 1}', "\x00\xff"])
def test_a_state_that_is_no_state_is_refused(folder: Path, text: str) -> None:
    (generation(folder) / "state.json").write_text(text, encoding="latin-1")
    refused(folder)


@pytest.mark.parametrize("text", ["", "generation-000009", "../elsewhere", "/etc", "generation-1/../..", "\xff\xfe"])
def test_a_wrong_current_is_refused(folder: Path, text: str) -> None:
    (folder / "CURRENT").write_text(text, encoding="latin-1")
    refused(folder)


@pytest.mark.parametrize("name", ["CURRENT", "state.json", "tensors.safetensors"])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name if name == "CURRENT" else generation(folder) / name).unlink()
    assert f"{name} is missing" in refused(folder)


def test_no_folder_at_all(tmp_path: Path) -> None:
    assert "not a model folder" in refused(tmp_path / "nothing")
    (tmp_path / "file").write_text("")
    refused(tmp_path / "file")


def test_a_pickle_in_the_place_of_the_tensors_is_never_run(folder: Path, tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "exploded"),)

    path = generation(folder) / "tensors.safetensors"
    path.write_bytes(pickle.dumps(Bomb()))
    refused(folder)
    reseal(folder)  # even with a checksum that fits
    refused(folder)
    assert not (tmp_path / "exploded").exists()


def test_tensors_of_other_names_or_shapes_are_refused(folder: Path, tmp_path: Path) -> None:
    tensors, state = read(folder)
    state = {k: v for k, v in state.items() if k != "format"}
    for name, value in (
        ("net.classifier.weight", torch.zeros(2, 2)),
        ("memory.pixels", torch.zeros(1, 1, 8, 8, dtype=torch.uint8)),
        ("slots.label", torch.zeros(3, dtype=torch.int64)),
    ):
        write(tmp_path / "other", {**tensors, name: value}, state)
        refused(tmp_path / "other")
        write(tmp_path / "less", {k: v for k, v in tensors.items() if k != name}, state)
        refused(tmp_path / "less")


def test_a_saved_learner_keeps_its_settings_when_a_methods_defaults_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = tiny_learner("itl")
    learner.learn(tiny_stream().tasks[0])
    learner.save(tmp_path / "model")
    changed = dataclasses.replace(presets.METHODS["itl"], defaults={"net.name": "resnet18", "tangent.lr": 0.5})
    monkeypatch.setitem(presets.METHODS, "itl", changed)
    assert itl.load(tmp_path / "model", device="cpu").settings == learner.settings
