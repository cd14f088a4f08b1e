"""Damaged images of the memory, damaged checksums, unrelated folders in a model folder, full disks."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from itl import UserError
from itl.apps.model import Model
from itl.apps.model.check import check
from itl.apps.model.edit import forget, rename, undo
from itl.apps.model.export import to_torch
from itl.checkpoint import store
from support.damage import flip_bit
from support.full_disk import full_disk
from support.tiny import LambdaCallback, differing_keys, learner_snapshot
from support.tiny_model import NAMES, teach, tiny_model, tiny_task, trained_model


def pictures(model: Model) -> list[Path]:
    return sorted((model.path / store.current(model.path)).rglob("*.png"))


def linked_picture(model: Model) -> Path:
    """An image file that all generations share."""
    return next(path for path in pictures(model) if path.stat().st_nlink == len(store.generations(model.path)))


def damage_all_copies(model: Model, picture: Path) -> None:
    """Flip a bit of every file with the content of an image; the memory can hold it in several slots."""
    content = picture.read_bytes()
    copies = {path.stat().st_ino: path for path in model.path.rglob("*.png") if path.read_bytes() == content}
    for path in copies.values():
        flip_bit(path)


def predictions(path: Path) -> torch.Tensor:
    model = Model.open(path, device="cpu", last_finished=True, memory=False)
    return torch.from_numpy(model.predict_proba(tiny_task(*NAMES)[0]))


# ---------------------------------------------------------------------- images


def test_flipped_bit_in_a_shared_image_disables_nothing(tmp_path: Path) -> None:
    model = trained_model(tmp_path / "m")
    expected = predictions(model.path)
    flip_bit(linked_picture(model))
    assert torch.equal(predictions(model.path), expected)
    to_torch(Model.open(model.path, device="cpu", memory=False), tmp_path / "m.pt2")
    again = Model.open(model.path, device="cpu")
    assert len(again.damaged_images) == 1
    assert len(again.learner.memory) == len(model.learner.memory) - 1
    assert [entry["what"] for entry in undo(model.path)] == ["learn"]  # the last lesson, not "damage"
    assert Model.open(model.path, device="cpu").output_names == ["cat", "dog"]


def test_undo_of_damage_keeps_states_whose_weights_are_intact(tmp_path: Path) -> None:
    model = trained_model(tmp_path / "m")
    for picture in pictures(model):
        flip_bit(picture)
    names = store.generations(model.path)
    assert check(model.path, repair=False).problems
    assert store.generations(model.path) == names
    (model.path / store.CURRENT).write_text("generation-")
    undo(model.path)
    assert store.generations(model.path) == names
    assert Model.open(model.path, device="cpu").output_names == list(NAMES)


@pytest.mark.parametrize("event", ["on_round_end", "on_memory_update", "on_stage_end"])
def test_unfinished_lesson_continues_without_a_damaged_image(tmp_path: Path, event: str) -> None:
    model = teach(tiny_model(tmp_path / "m", "itl-l"), "cat", "dog")
    events: list[str] = []

    def stop(name: str, *_: object) -> None:
        events.append(name)
        if events.count(event) == 2 or name == event == "on_memory_update":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        teach(model, "eel", "fox", callback=LambdaCallback(stop), save_interval=0.0)
    again = Model.open(model.path, device="cpu")
    damage_all_copies(again, pictures(again)[0])
    again = Model.open(model.path, device="cpu")
    assert again.damaged_images
    assert again.pending is not None
    teach(again, "eel", "fox")
    assert Model.open(model.path, device="cpu").output_names == list(NAMES)


def test_damage_after_opening_is_repaired_from_the_images_in_memory(tmp_path: Path) -> None:
    model = trained_model(tmp_path / "m")
    flip_bit(linked_picture(model))
    rename(model, "cat", "lynx")
    again = Model.open(model.path, device="cpu")
    assert again.damaged_images == []
    assert differing_keys(learner_snapshot(again.learner), learner_snapshot(model.learner)) == set()


def test_model_without_its_memory_is_not_saved(tmp_path: Path) -> None:
    trained_model(tmp_path / "m")
    model = Model.open(tmp_path / "m", device="cpu", memory=False)
    with pytest.raises(UserError, match="opened without its memory"):
        model.save()
    with pytest.raises(UserError, match="opened without its memory"):
        model.teach(*tiny_task("cat"))


# ---------------------------------------------------------------------- check


def test_check_drops_a_damaged_image_and_restores_one_that_has_a_copy(tmp_path: Path) -> None:
    original = trained_model(tmp_path / "original")
    shutil.copytree(original.path, tmp_path / "m")  # without hard links
    model = Model.open(tmp_path / "m", device="cpu")
    older, newer = (tmp_path / "m" / name for name in store.generations(tmp_path / "m"))
    copies = {path.read_bytes() for path in older.rglob("*.png")}
    with_copy = next(path for path in pictures(model) if path.read_bytes() in copies)
    without_copy = next(path for path in pictures(model) if path.read_bytes() not in copies)
    flip_bit(with_copy)
    flip_bit(without_copy)
    assert len(check(tmp_path / "m", repair=False).problems) == 2
    assert store.current(tmp_path / "m") == newer.name
    result = check(tmp_path / "m")
    assert result.repairs == ["restored 1 and dropped 1 images of the memory; the weights are intact"]
    again = Model.open(tmp_path / "m", device="cpu")
    assert again.damaged_images == []
    assert len(again.learner.memory) == len(model.learner.memory) - 1
    assert again.history[-1]["what"] == "repair"


def test_check_of_an_intact_model_changes_nothing(tmp_path: Path) -> None:
    model = trained_model(tmp_path / "m")
    result = check(model.path)
    assert (result.states, result.problems, result.repairs) == (2, [], [])
    assert store.current(model.path) == model.generation


@pytest.mark.parametrize("share", [k / 20 for k in range(21)])
def test_flipped_bit_in_the_checksums_loses_nothing(
    tmp_path_factory: pytest.TempPathFactory, trained: Model, share: float
) -> None:
    path = tmp_path_factory.mktemp("sums") / "m"
    shutil.copytree(trained.path, path)
    flip_bit(path / store.current(path) / store.CHECKSUMS, share=share, bit=2)
    with pytest.raises(UserError, match="itl undo"):
        Model.open(path, device="cpu")
    assert check(path).repairs
    again = Model.open(path, device="cpu")
    assert again.output_names == list(NAMES)
    assert len(again.damaged_images) <= 1
    weights = zip(again.learner.net.state_dict().values(), trained.learner.net.state_dict().values(), strict=True)
    assert all(torch.equal(a, b) for a, b in weights)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return trained_model(tmp_path_factory.mktemp("trained") / "m")


def test_check_refers_to_undo_if_the_weights_are_damaged(tmp_path: Path) -> None:
    model = trained_model(tmp_path / "m")
    flip_bit(model.path / store.current(model.path) / "tensors.safetensors")
    with pytest.raises(UserError, match=f"itl undo {model.path} restores the last intact state$"):
        check(model.path)
    undo(model.path)
    assert check(model.path).problems == []


# ---------------------------------------------------------------------- unrelated folders


@pytest.mark.parametrize(
    "name", ["generation-backup", "generation-000777", "generation-²", "generation-999999999999", "generation-9" * 3]
)
@pytest.mark.parametrize("copied", [False, True])
def test_other_folders_in_a_model_folder_are_never_touched(tmp_path: Path, name: str, copied: bool) -> None:
    model = teach(tiny_model(tmp_path / "m"), "cat", "dog")
    other = model.path / name
    if copied:
        shutil.copytree(model.path / str(model.generation), other)
    else:
        other.mkdir()
        (other / "photo.jpg").write_bytes(b"mine")
    before = sorted(os.listdir(other))
    rename(model, "cat", "lynx")
    rename(model, "lynx", "cat")
    undo(model.path)
    forget(Model.open(model.path, device="cpu"), classes=["dog"])
    assert sorted(os.listdir(other)) == before
    assert Model.open(model.path, device="cpu").output_names == ["lynx"]
    assert store.generation_number(store.current(model.path)) < 10


@pytest.mark.parametrize("name", ["generation-000777", "generation-²"])
def test_other_folders_are_not_touched_if_the_list_of_generations_is_lost(tmp_path: Path, name: str) -> None:
    model = trained_model(tmp_path / "m")
    (model.path / name).mkdir()
    (model.path / name / "photo.jpg").write_bytes(b"mine")
    (model.path / store.CURRENT).write_text("damaged")
    assert check(model.path).repairs
    (model.path / store.CURRENT).write_text("damaged")
    undo(model.path)
    rename(Model.open(model.path, device="cpu"), "cat", "lynx")
    assert (model.path / name / "photo.jpg").read_bytes() == b"mine"


def save_without_becoming_current(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Save a model in a process that is killed before the new generation becomes the current one."""

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(store, "set_current", killed)
        with pytest.raises(KeyboardInterrupt):
            model.save()


def test_forget_removes_a_generation_that_never_became_current(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = teach(tiny_model(tmp_path / "m"), "cat", "dog")
    save_without_becoming_current(model, monkeypatch)
    assert len(list(model.path.glob("generation-*"))) == 2
    forget(Model.open(model.path, device="cpu"), classes=["dog"])
    assert len(list(model.path.glob("generation-*"))) == 1


def test_undoing_damage_removes_a_generation_that_never_became_current(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = trained_model(tmp_path / "m")
    first, second = store.generations(model.path)[-2:]
    save_without_becoming_current(model, monkeypatch)
    flip_bit(model.path / second / store.STATE)
    undo(model.path)
    assert store.current(model.path) == first
    assert {path.name for path in model.path.glob("generation-*")} == set(store.generations(model.path)) <= {first}


def test_undoing_damage_of_current_keeps_all_intact_generations(tmp_path: Path) -> None:
    model = trained_model(tmp_path / "m")
    first, second = store.generations(model.path)[-2:]
    file = model.path / store.CURRENT
    file.write_text(file.read_text().replace(second, first))
    undo(model.path)
    assert set(store.generations(model.path)) == {first, second}


# ---------------------------------------------------------------------- full disk


def test_forget_and_undo_work_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change: Callable[[Model], object]
    for number, change in enumerate(
        (lambda model: forget(model, classes=["dog"]), lambda model: undo(model.path)),
    ):
        model = trained_model(tmp_path / str(number))
        with full_disk(model.path, monkeypatch):
            with pytest.raises(UserError, match="No space left on device; its content is unchanged"):
                rename(Model.open(model.path, device="cpu"), "cat", "lynx")
            change(Model.open(model.path, device="cpu"))
        assert "fox" not in Model.open(model.path, device="cpu").output_names or number == 0
        assert len(store.generations(model.path)) == 1
