"""Changing a model: undo, forget, rename, merge and resize."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from itl import UserError
from itl.apps.model import Model
from itl.apps.model.edit import forget, rename, resize, undo
from itl.checkpoint import store
from support.damage import flip_bit
from support.tiny import LambdaCallback, differing_keys, learner_snapshot
from support.tiny_model import NAMES, teach, tiny_model, tiny_task, trained_model


@pytest.fixture(scope="module", params=["itl", "itl-l"])
def original(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two tasks, with and without stored logits."""
    return trained_model(tmp_path_factory.mktemp("original") / "m", request.param, buffer=20).path


@pytest.fixture
def model(original: Path, tmp_path: Path) -> Model:
    shutil.copytree(original, tmp_path / "m")
    return Model.open(tmp_path / "m", device="cpu")


def reopened(model: Model) -> Model:
    return Model.open(model.path, device="cpu")


def all_bytes(folder: Path) -> bytes:
    """Return all bytes in a folder: file names, files and decoded tensors."""
    out = b""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            out += path.read_bytes() + str(path).encode()
    for name in store.generations(folder):
        tensors, _ = store.read_generation(folder, name)
        out += b"".join(t.contiguous().flatten().view(torch.uint8).numpy().tobytes() for t in tensors.values())
    return out


def images_in_memory(model: Model, name: str) -> Tensor:
    """Return the images of a class in the memory."""
    memory = model.learner.memory
    return memory.pixels[memory.slots.of_class(model.output_names.index(name))]


# ---------------------------------------------------------------------- undo


def test_undo_restores_the_state_before_the_last_task(tmp_path: Path) -> None:
    model = teach(tiny_model(tmp_path / "m"), "cat", "dog")
    before, generation = learner_snapshot(model.learner), model.generation
    teach(model, "eel", "fox")
    (undone,) = undo(model.path)
    again = reopened(model)
    assert (undone["what"], undone["folders"]) == ("learn", ["eel", "fox"])
    assert differing_keys(learner_snapshot(again.learner), before) == set()
    assert (again.output_names, again.generation) == (["cat", "dog"], generation)
    assert store.generations(model.path) == [generation]
    with pytest.raises(UserError, match="no older state"):
        undo(model.path)
    teach(again, "eel", "fox")  # and it can continue to learn
    assert reopened(again).output_names == list(NAMES)


def test_unfinished_task_can_be_undone(tmp_path: Path) -> None:
    def stop(event: str, *_: Any) -> None:
        if event == "on_memory_update":
            raise KeyboardInterrupt

    model = teach(tiny_model(tmp_path / "m", undo=0), "cat", "dog")
    before = learner_snapshot(model.learner)
    with pytest.raises(KeyboardInterrupt):
        teach(model, "eel", "fox", callback=LambdaCallback(stop), save_interval=0.0)
    assert reopened(model).pending is not None
    undo(model.path)
    assert differing_keys(learner_snapshot(reopened(model).learner), before) == set()


def test_undo_never_goes_to_a_damaged_generation(model: Model) -> None:
    (model.path / store.generations(model.path)[0] / "state.json").write_text("{}")
    with pytest.raises(UserError):
        undo(model.path)
    assert reopened(model).output_names == list(NAMES)


def test_undo_of_an_unfinished_first_task_leaves_no_model(tmp_path: Path) -> None:
    def stop(event: str, *_: Any) -> None:
        if event == "on_memory_update":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        teach(tiny_model(tmp_path / "m"), "cat", "dog", callback=LambdaCallback(stop), save_interval=0.0)
    (tmp_path / "m" / "notes.txt").write_text("other")
    (undone,) = undo(tmp_path / "m")
    assert undone["what"].startswith("an unfinished learn, the first")
    assert os.listdir(tmp_path / "m") == ["notes.txt"]  # other files are kept
    (tmp_path / "m" / "notes.txt").unlink()
    teach(tiny_model(tmp_path / "m"), "cat", "dog")
    assert Model.open(tmp_path / "m", device="cpu").output_names == ["cat", "dog"]


DAMAGES: dict[str, Callable[[Path, Path], Any]] = {
    "bit flipped": lambda root, now: flip_bit(now / "tensors.safetensors"),
    "state replaced": lambda root, now: (now / "state.json").write_text('{"notes": null}'),
    "checksums removed": lambda root, now: (now / "SHA256SUMS").unlink(),
    "generation removed": lambda root, now: shutil.rmtree(now),
    "CURRENT emptied": lambda root, now: ((root / "CURRENT").write_text(""), shutil.rmtree(now)),
    "CURRENT removed": lambda root, now: ((root / "CURRENT").unlink(), flip_bit(now / "state.json")),
}


@pytest.mark.parametrize("damage", list(DAMAGES))
def test_undo_repairs_a_damaged_model(tmp_path: Path, damage: str) -> None:
    model = teach(tiny_model(tmp_path / "m"), "cat", "dog")
    before = learner_snapshot(model.learner)
    teach(model, "eel", "fox")
    DAMAGES[damage](model.path, model.path / store.current(model.path))
    with pytest.raises(UserError, match=f"itl undo {model.path}"):
        reopened(model)
    assert undo(model.path) == [{"what": "a damaged state"}]
    assert differing_keys(learner_snapshot(reopened(model).learner), before) == set()
    assert len(store.generations(model.path)) == 1


def test_other_format_version_is_not_called_damaged(tmp_path: Path) -> None:
    model = trained_model(tmp_path / "m")
    now = model.path / store.current(model.path)
    state = json.loads((now / "state.json").read_text())
    (now / "state.json").write_text(json.dumps({**state, "format": store.FORMAT_VERSION + 1}))
    store.write_checksums(now)
    store.set_current(model.path, now.name)
    with pytest.raises(UserError, match=f"reads version {store.FORMAT_VERSION}$"):
        reopened(model)


def test_undo_skips_damaged_generations(tmp_path: Path) -> None:
    model = teach(tiny_model(tmp_path / "m"), "cat", "dog")
    before = learner_snapshot(model.learner)
    teach(teach(model, "eel"), "fox")
    for name in store.generations(model.path)[1:]:
        flip_bit(model.path / name / "tensors.safetensors")
    undo(model.path)
    assert differing_keys(learner_snapshot(reopened(model).learner), before) == set()


def test_damaged_model_without_older_state_has_no_undo_hint(tmp_path: Path) -> None:
    model = teach(tiny_model(tmp_path / "m"), "cat", "dog")
    flip_bit(model.path / store.current(model.path) / "tensors.safetensors")
    for refuse in (lambda: reopened(model), lambda: undo(model.path)):
        with pytest.raises(UserError, match=r"restore it from a copy$"):
            refuse()
    assert (model.path / "CURRENT").exists()


# ---------------------------------------------------------------------- forget


def test_forgotten_image_is_removed_from_all_files(model: Model) -> None:
    image, *others = images_in_memory(model, "cat").clone()
    copies = [
        picture for slot, picture in by_slot(model).items() if torch.equal(model.learner.memory.pixels[slot], image)
    ]
    png, count = copies[0].read_bytes(), len(model.learner.memory)
    assert forget(model, images=image[None]) == len(copies)  # a reservoir can hold it twice
    left = all_bytes(model.path)
    assert image.numpy().tobytes() not in left
    assert png not in left
    assert len(store.generations(model.path)) == 1
    again = reopened(model)
    assert len(again.learner.memory) == count - len(copies)
    rest = again.learner.memory.pixels.numpy().tobytes()
    assert all(other.numpy().tobytes() in rest for other in others if not torch.equal(other, image))
    assert again.history[-1]["what"] == "forget"
    teach(again, "cat", "dog")  # and the memory is filled again
    assert len(again.learner.memory) == count


def by_slot(model: Model) -> dict[int, Path]:
    return {int(path.stem): path for path in (model.path / str(model.generation)).rglob("*.png")}


def test_forgotten_class_is_removed_from_all_files(model: Model) -> None:
    images, others = images_in_memory(model, "dog").clone(), learner_snapshot(model.learner)
    logits = model.learner.logits(_images(*NAMES))
    assert forget(model, classes=["dog"]) == len(images)
    left = all_bytes(model.path)
    assert b"dog" not in left
    assert all(image.numpy().tobytes() not in left for image in images)
    again = reopened(model)
    assert again.output_names == ["cat", "eel", "fox"]
    assert again.learner.tasks == [(0,), (1, 2)]
    assert torch.equal(again.learner.logits(_images(*NAMES)), logits[:, [0, 2, 3]])
    rows = [k for k, label in enumerate(others["label"].tolist()) if label != 1]
    now = learner_snapshot(again.learner)
    assert torch.equal(now["pixels"][: len(rows)], others["pixels"][rows])
    assert [again.output_names[k] for k in now["label"].tolist() if k >= 0] == [
        NAMES[k] for k in others["label"][rows].tolist()
    ]
    if "logits" in now:
        assert torch.equal(now["logits"][: len(rows)], others["logits"][rows][:, [0, 2, 3]])
        assert now["width"][: len(rows)].tolist() == [{2: 1, 4: 3}[w] for w in others["width"][rows].tolist()]
    teach(again, "dog", "fox")
    assert reopened(again).output_names == ["cat", "eel", "fox", "dog"]


def _images(*classes: str) -> Any:
    from itl.streams import Images

    pixels, _ = tiny_task(*classes)
    return Images(pixels, torch.zeros(len(pixels), dtype=torch.int64))


def test_forgotten_class_is_removed_under_all_its_names(model: Model) -> None:
    rename(model, "dog", "hound")
    rename(model, "hound", "whippet")
    forget(model, classes=["whippet"])
    left = all_bytes(model.path)
    assert not any(name in left for name in (b"dog", b"hound", b"whippet"))
    assert b"cat" in left


def test_undo_keeps_a_temporarily_unreadable_state(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    teach(model, "eel", "fox")
    before = sorted(path.name for path in model.path.iterdir())

    def denied(*_: Any) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(store, "load_file", denied)
    with pytest.raises(UserError, match=r"Permission denied$"):
        Model.open(model.path, device="cpu")
    with pytest.raises(UserError, match="Permission denied"):
        undo(model.path)
    assert sorted(path.name for path in model.path.iterdir()) == before


@pytest.fixture(scope="module")
def large_memory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_model(tmp_path_factory.mktemp("large") / "m", buffer=20).path


@pytest.mark.parametrize(
    "name", ["date", "what", "learn", "classes", "task", "accuracy", "folder", "itl", "test", "name"]
)
def test_class_named_like_a_history_key_can_be_forgotten(name: str, large_memory: Path, tmp_path: Path) -> None:
    model = Model.open(shutil.copytree(large_memory, tmp_path / "m"), device="cpu")
    rename(model, "dog", name)
    entry = {
        "folder": f"../{name}/x",
        "name": "x",
        "classes": {name: 3, "cat": 2},
        "test": {name: 1},
        "accuracy": {"all": 1.0, "task": 2.0, "classes": {name: 3.0, "cat": 4.0}},
    }
    model.add_history_entry("learn", **entry)
    model.save()
    forget(model, classes=[name])
    *_, learned, last = reopened(model).history
    assert (learned["what"], last["what"]) == ("learn", "forget")
    assert (learned["folder"], learned["name"]) == ("(forgotten)", "x")
    assert (learned["classes"], learned["test"]) == ({"cat": 2}, {})
    assert learned["accuracy"] == {"all": 1.0, "task": 2.0, "classes": {"cat": 4.0}}


def test_forget_refuses_unknown_images_and_classes(model: Model) -> None:
    before = learner_snapshot(model.learner)
    with pytest.raises(UserError, match="not in the memory"):
        forget(model, images=torch.zeros(1, 3, 8, 8, dtype=torch.uint8))
    with pytest.raises(UserError, match=r"Unknown class 'dgo'. Did you mean 'dog'\?"):
        forget(model, classes=["dgo"])
    with pytest.raises(UserError, match="no class"):
        forget(model, classes=NAMES)
    assert differing_keys(learner_snapshot(reopened(model).learner), before) == set()


# ---------------------------------------------------------------------- rename, merge


def test_rename_keeps_predictions(model: Model) -> None:
    before = model.predict_proba(tiny_task(*NAMES)[0])
    rename(model, "dog", "hound")
    again = reopened(model)
    assert again.classes == ["cat", "hound", "eel", "fox"]
    assert (again.predict_proba(tiny_task(*NAMES)[0]) == before).all()
    assert {p.parent.name for p in (model.path / str(again.generation)).rglob("*.png")} == set(again.classes)
    undo(model.path)
    assert reopened(model).output_names == list(NAMES)


def test_class_names_are_normalized_and_printable(model: Model) -> None:
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    rename(model, "dog", decomposed)
    assert model.classes[1] == composed  # as for a folder of that name
    for wrong in ("two\nlines", "red\x1b[31m"):
        with pytest.raises(UserError, match="one line"):
            rename(model, "cat", wrong)
    forget(model, classes=[decomposed])
    assert composed not in json.dumps([model.output_names, model.history], ensure_ascii=False)


def test_merge_adds_the_probabilities(model: Model) -> None:
    before = model.predict_proba(tiny_task(*NAMES)[0])
    rename(model, "cat", "fox", merge=True)
    again = reopened(model)
    assert again.classes == ["fox", "dog", "eel"]
    np.testing.assert_allclose(
        again.predict_proba(tiny_task(*NAMES)[0]),
        np.stack([before[:, 0] + before[:, 3], before[:, 1], before[:, 2]], 1),
    )
    assert set(again.learner.memory.labels.tolist()) == {0, 1, 2}
    teach(again, "fox")
    assert again.learner.tasks[-1] == (0,)
    assert reopened(again).classes == ["fox", "dog", "eel"]
    forget(again, classes=["fox"])
    assert reopened(again).output_names == ["dog", "eel"]


def test_rename_refuses_taken_and_unknown_names(model: Model) -> None:
    for old, new, merge, match in (
        ("cat", "dog", False, "add --merge"),
        ("cat", "cow", True, "Unknown class 'cow'"),
        ("cow", "cat", False, "Unknown class 'cow'"),
        ("cat", " ", False, "must not be empty"),
        ("cat", "cat", False, "already"),
    ):
        with pytest.raises(UserError, match=match):
            rename(model, old, new, merge=merge)


# ---------------------------------------------------------------------- resize


def test_resize_keeps_classes_balanced(model: Model) -> None:
    before = {image.numpy().tobytes() for image in model.learner.memory.pixels[:20]}
    lost = resize(model, 4)
    again = reopened(model)
    memory = again.learner.memory
    assert (memory.size, len(memory), again.learner.buffer) == (4, 4, 4)
    assert {image.numpy().tobytes() for image in memory.pixels[:4]} <= before
    assert sum(lost.values()) == 16
    counts = np.bincount(memory.labels, minlength=4)
    assert counts.max() - counts[np.unique(memory.labels)].min() <= 1
    resize(again, 24)
    teach(again, "cat", "dog")
    assert len(reopened(again).learner.memory) == 24


def test_memory_smaller_than_the_number_of_classes_is_refused(model: Model) -> None:
    with pytest.raises(UserError, match="cannot hold"):
        resize(model, 1)


def test_changes_are_refused_while_a_task_is_unfinished(model: Model) -> None:
    model.pending = {"fingerprint": ""}
    for change in (
        lambda: resize(model, 9),
        lambda: rename(model, "cat", "cow"),
        lambda: forget(model, classes=["cat"]),
    ):
        with pytest.raises(UserError, match="unfinished"):
            change()


def test_history_lists_every_change(model: Model) -> None:
    rename(model, "cat", "lynx")
    resize(model, 9)
    assert [entry["what"] for entry in reopened(model).history] == ["learn", "learn", "rename", "resize"]
    json.dumps(model.history)


def test_undo_needs_no_space_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained_model(tmp_path / "m")

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("itl.checkpoint.store.write_text_atomic", full)
    assert [entry["folders"] for entry in undo(tmp_path / "m")] == [["eel", "fox"]]
    assert Model.open(tmp_path / "m", device="cpu").output_names == ["cat", "dog"]
    assert len(store.generations(tmp_path / "m")) == 1
