"""A model folder is the learner with names and pictures; it is never in a mixed state, and one writes at a time."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from itl import UserError
from itl.apps.model import Model
from itl.apps.model.memory_images import MemoryImageFiles, folders
from itl.checkpoint import store
from itl.checkpoint.lock import lock
from support.tiny import Teller, differing, photograph
from support.tiny_model import NAMES, taught, teach, tiny_model, tiny_task


class Interrupted(Exception):
    """Someone pulled the plug."""


def reopened(model: Model) -> Model:
    return Model.open(model.path, device="cpu")


def pictures(model: Model) -> list[Path]:
    assert model.generation is not None
    return sorted((model.path / model.generation).glob("memory/*/*.png"))


@pytest.mark.parametrize("method", ["itl", "itl-l"])
def test_what_is_opened_is_what_was_saved(tmp_path: Path, method: str) -> None:
    model = taught(tmp_path / "m", method)
    again = reopened(model)
    assert differing(photograph(again.learner), photograph(model.learner)) == set()
    assert again.names == model.names == list(NAMES)
    assert (again.image, again.history, again.pending) == (model.image, model.history, None)
    assert (again.predict_proba(tiny_task(*NAMES)[0]) == model.predict_proba(tiny_task(*NAMES)[0])).all()


def test_it_learns_on_from_the_folder_as_if_never_closed(tmp_path: Path) -> None:
    whole = taught(tmp_path / "whole")
    model = teach(tiny_model(tmp_path / "m"), "cat", "dog")
    again = teach(reopened(model), "eel", "fox")
    assert differing(photograph(again.learner), photograph(whole.learner)) == set()


def test_the_memory_is_pictures_under_their_classes_names(tmp_path: Path) -> None:
    model = taught(tmp_path / "m")
    memory = model.learner.memory
    assert len(pictures(model)) == len(memory) == 8
    for path in pictures(model):
        slot = int(path.stem)
        assert path.parent.name == model.names[memory.slots.label[slot]]
        assert (np.array(Image.open(path)).transpose(2, 0, 1) == memory.pixels[slot].numpy()).all()
    assert "memory.pixels" not in store.read(model.path)[0]


def test_a_picture_that_stays_in_memory_is_not_written_again(tmp_path: Path) -> None:
    model = teach(tiny_model(tmp_path / "m"), "cat", "dog")
    before = {p.stat().st_ino for p in pictures(model)}
    teach(reopened(model), "eel", "fox")
    after = {p.stat().st_ino for p in pictures(Model.open(model.path))}
    assert len(before & after) == 4  # half of it had to make room


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["cat", "dog"], ["cat", "dog"]),
        (["../etc", "a/b"], ["_etc", "a_b"]),
        (["Cat", "cat", "CAT"], ["Cat", "cat-2", "CAT-3"]),
        (["", ".", "..", " "], ["class", "class-2", "class-3", "class-4"]),
        (["猫", "\udcff", "x" * 300], ["猫", "_", "x" * 60]),
    ],
)
def test_any_class_name_has_a_folder(names: list[str], expected: list[str]) -> None:
    assert folders(names) == expected


def test_checksums_are_such_as_sha256sum_reads(tmp_path: Path) -> None:
    model = taught(tmp_path / "m")
    assert model.generation is not None
    subprocess.run(
        ["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=model.path / model.generation, check=True
    )


def test_grey_images_and_odd_channels_come_back_too(tmp_path: Path) -> None:
    for channels in (1, 5):
        model = tiny_model(tmp_path / str(channels), channels=channels)
        pixels = torch.randint(0, 256, (20, channels, 8, 8), dtype=torch.uint8)
        with model.lock():
            model.teach(pixels, ["a", "b"] * 10)
            model.finish({})
        assert differing(photograph(reopened(model).learner), photograph(model.learner)) == set()


def test_known_classes_keep_their_outputs_and_new_ones_get_the_next(tmp_path: Path) -> None:
    model = teach(tiny_model(tmp_path / "m"), "cat", "dog")
    teach(model, "dog", "fox")
    assert model.names == ["cat", "dog", "fox"]
    assert model.learner.tasks == [(0, 1), (1, 2)]


def test_a_learner_saved_alone_is_a_model_without_names(tmp_path: Path) -> None:
    model = taught(tmp_path / "m")
    model.learner.notes.pop("model")
    model.learner.save(tmp_path / "plain")
    assert Model.open(tmp_path / "plain", device="cpu").names == ["0", "1", "2", "3"]


# ---------------------------------------------------------------------- unfinished


def stopped(path: Path, stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that was stopped in a stage of its second task, having saved after every round."""

    def stop(event: str, learner: Any, name: str | None, done: int) -> None:
        if (event, name, done) == ("round_ends", stage, 1):
            raise Interrupted

    model = teach(tiny_model(path), "cat", "dog")
    with pytest.raises(Interrupted):
        teach(model, "eel", "fox", callback=Teller(stop), every=0.0)


@pytest.mark.parametrize("stage", ["specialist", "tangent", "projection"])
def test_a_learn_that_was_stopped_goes_on_to_the_same_bits(
    tmp_path: Path, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = taught(tmp_path / "whole")
    stopped(tmp_path / "m", stage, monkeypatch)
    again = Model.open(tmp_path / "m", device="cpu")
    assert again.pending is not None
    assert again.pending["what"] == "eel fox"
    teach(again, "eel", "fox")
    assert differing(photograph(again.learner), photograph(whole.learner)) == set()
    assert [entry["folders"] for entry in reopened(again).history] == [["cat", "dog"], ["eel", "fox"]]


def test_it_goes_on_with_as_many_threads_as_it_was_begun_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped(tmp_path / "m", "specialist", monkeypatch)
    torch.set_num_threads(2)
    try:
        again = Model.open(tmp_path / "m", device="cpu")
        assert torch.get_num_threads() == 2  # opening a model changes nothing
        teach(again, "eel", "fox")
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(1)


def test_another_task_is_refused_while_one_is_unfinished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped(tmp_path / "m", "specialist", monkeypatch)
    with pytest.raises(UserError, match="in the middle of learning eel fox"):
        teach(Model.open(tmp_path / "m", device="cpu"), "cat")


def test_as_many_generations_are_kept_as_learns_can_be_undone(tmp_path: Path) -> None:
    for undo in (0, 1, 2):
        model = tiny_model(tmp_path / str(undo), undo=undo)
        for k in range(4):
            teach(model, NAMES[k], every=0.0)
        kept = store.generations(model.path)
        assert len(kept) == undo + 1
        assert kept[-1] == model.generation
        taught_then = [len(store.read_text(model.path / name)["notes"]["model"]["history"]) for name in kept]
        assert taught_then == list(range(4 - undo, 5))


# ---------------------------------------------------------------------- one writer


HOLD = """
import sys, time
from itl.checkpoint.lock import lock
with lock(sys.argv[1]):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path: Path) -> Any:
    """Another process that holds the lock of tmp_path / "m"."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path / "m")], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_the_second_writer_is_refused_by_a_line_that_names_the_first(tmp_path: Path, holder: Any) -> None:
    with (
        pytest.raises(UserError, match=rf"being changed by process {holder.pid} on \S+ since 20"),
        lock(tmp_path / "m"),
    ):
        pass


def test_or_waits(tmp_path: Path, holder: Any) -> None:
    began = time.monotonic()
    with pytest.raises(UserError, match="being changed"), lock(tmp_path / "m", wait=0.5):
        pass
    assert time.monotonic() - began >= 0.5
    holder.kill()  # a dead process holds nothing, whatever it left in the file
    with lock(tmp_path / "m", wait=5):
        assert json.loads((tmp_path / "m" / "LOCK").read_text())["pid"] == os.getpid()


def test_two_models_in_one_process_exclude_each_other_too(tmp_path: Path) -> None:
    with lock(tmp_path / "m"), pytest.raises(UserError, match=f"process {os.getpid()} "), lock(tmp_path / "m"):
        pass


def test_a_save_takes_the_lock_where_it_is_not_held(tmp_path: Path, holder: Any) -> None:
    model = tiny_model(tmp_path / "m")
    model.teach(*tiny_task("cat", "dog"), every=1e9)
    with pytest.raises(UserError, match=f"being changed by process {holder.pid}"):
        model.save()
    holder.kill()
    holder.wait()
    model.save()
    assert reopened(model).names == ["cat", "dog"]


def test_a_lock_under_which_nothing_was_made_leaves_nothing(tmp_path: Path) -> None:
    with lock(tmp_path / "m"):
        assert (tmp_path / "m" / "LOCK").exists()
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_somebody_else_changed_is_not_overwritten(tmp_path: Path) -> None:
    mine = taught(tmp_path / "m")
    yours = reopened(mine)
    yours.save()
    with pytest.raises(UserError, match="changed by somebody else"):
        mine.save()
    assert differing(photograph(reopened(yours).learner), photograph(yours.learner)) == set()


def test_a_reader_is_not_disturbed_by_a_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = taught(tmp_path / "m", undo=0)
    real, raced = store.read_generation, []

    def slow(root: Path, name: str) -> Any:
        if len(raced) < 2:
            raced.append(name)
            model.save()  # and with it the generation that is about to be read goes away
        return real(root, name)

    monkeypatch.setattr(store, "read_generation", slow)
    assert reopened(model).generation == model.generation
    assert len(raced) == 2


# ---------------------------------------------------------------------- mishaps


def test_a_disk_that_fills_up_leaves_the_model_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = teach(tiny_model(tmp_path / "m"), "cat", "dog")
    before = photograph(model.learner)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Image.Image, "save", full)
        with pytest.raises(UserError, match="No space left on device"):
            teach(model, "eel", "fox")
    assert differing(photograph(Model.open(tmp_path / "m", device="cpu").learner), before) == set()
    assert not list((tmp_path / "m").glob(".draft-*"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    model = taught(tmp_path / "m")
    os.chmod(tmp_path / "m", 0o555)
    try:
        with pytest.raises(UserError, match="Permission denied"):
            model.save()
        assert reopened(model).names == list(NAMES)
    finally:
        os.chmod(tmp_path / "m", 0o755)


def test_a_lock_that_cannot_be_laid_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: Any) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    (tmp_path / "m").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", denied)
        with pytest.raises(UserError, match=r"cannot write to the model folder .*: Permission denied"):
            lock(tmp_path / "m").__enter__()


def test_a_gpu_without_room_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = teach(tiny_model(tmp_path / "m"), "cat", "dog")
    before = photograph(model.learner)

    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    with monkeypatch.context() as patch:
        patch.setattr(type(model.learner.net), "forward", full)
        with pytest.raises(UserError, match="too little memory"):
            teach(model, "eel", "fox")
        with pytest.raises(UserError, match="too little memory"):
            Model.open(tmp_path / "m", device="cpu").predict_proba(tiny_task("cat")[0])
    assert differing(photograph(Model.open(tmp_path / "m", device="cpu").learner), before) == set()


def test_a_missing_picture_is_named(tmp_path: Path) -> None:
    model = taught(tmp_path / "m")
    pictures(model)[0].unlink()
    with pytest.raises(UserError, match=f"{pictures(model)[0].parent.parent.name}|is missing"):
        reopened(model)


def test_a_folder_that_holds_a_model_is_not_begun_anew(tmp_path: Path) -> None:
    taught(tmp_path / "m")
    with pytest.raises(UserError, match="holds a model already"):
        tiny_model(tmp_path / "m")


def test_a_full_disk_does_not_keep_what_makes_room_from_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with lock(tmp_path / "m"):
        assert (tmp_path / "m" / "LOCK").exists()


def test_whatever_a_learner_takes_a_model_says_something_about(tmp_path: Path) -> None:
    model = taught(tmp_path)
    pixels = torch.randint(0, 256, (3, 3, 8, 8), dtype=torch.uint8)
    said = model.predict_proba(pixels)
    rows = pixels.permute(0, 2, 3, 1).numpy()
    for same in (pixels.numpy(), rows, [Image.fromarray(row) for row in rows]):
        assert np.array_equal(model.predict_proba(same), said)


def test_pictures_that_go_while_they_are_read_are_read_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, gone = taught(tmp_path), []
    inside = MemoryImageFiles.read

    def read(self: MemoryImageFiles, root: Path, *rest: Any) -> Any:
        if not gone:  # a learn commits, and tidies this generation away
            gone.append(root)
            model.save(private=True)
            assert not root.exists()
        return inside(self, root, *rest)

    monkeypatch.setattr(MemoryImageFiles, "read", read)
    assert Model.open(model.path, device="cpu").generation == model.generation != gone[0].name


def test_a_picture_that_cannot_be_read_now_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = taught(tmp_path)

    def refuse(path: Path, **options: Any) -> Any:
        raise OSError(errno.EMFILE, "Too many open files", str(path))

    monkeypatch.setattr(Image, "open", refuse)
    with pytest.raises(store.Unreadable, match=r"cannot read the model folder .*: Too many open files"):
        reopened(model)
