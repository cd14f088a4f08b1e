"""The model folder: saving and opening, memory images, resuming, the lock, and failures that leave it unchanged."""

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

import itl
from itl import UserError, locks
from itl.apps.model import Model
from itl.apps.model.memory_images import MemoryImageFiles, class_folder_names
from itl.checkpoint import store
from itl.checkpoint.lock import lock
from support.tiny import Interrupted, LambdaCallback, differing_keys, learner_snapshot
from support.tiny_model import NAMES, teach, tiny_model, tiny_task, trained_model


def reopened(model: Model) -> Model:
    return Model.open(model.path, device="cpu")


def memory_images(model: Model) -> list[Path]:
    assert model.generation is not None
    return sorted((model.path / model.generation).glob("memory/*/*.png"))


@pytest.mark.parametrize("method", ["itl", "itl-l"])
def test_opened_model_equals_the_saved_one(tmp_path: Path, method: str) -> None:
    model = trained_model(tmp_path / "m", method)
    again = reopened(model)
    assert differing_keys(learner_snapshot(again.learner), learner_snapshot(model.learner)) == set()
    assert again.output_names == model.output_names == list(NAMES)
    assert (again.image, again.history, again.pending) == (model.image, model.history, None)
    assert (again.predict_proba(tiny_task(*NAMES)[0]) == model.predict_proba(tiny_task(*NAMES)[0])).all()


def test_reopened_model_continues_bit_identically(tmp_path: Path) -> None:
    uninterrupted = trained_model(tmp_path / "uninterrupted")
    model = teach(tiny_model(tmp_path / "m"), "cat", "dog")
    again = teach(reopened(model), "eel", "fox")
    assert differing_keys(learner_snapshot(again.learner), learner_snapshot(uninterrupted.learner)) == set()


def test_memory_is_stored_as_images_by_class_name(tmp_path: Path) -> None:
    model = trained_model(tmp_path / "m")
    memory = model.learner.memory
    assert len(memory_images(model)) == len(memory) == 8
    for path in memory_images(model):
        slot = int(path.stem)
        assert path.parent.name == model.output_names[memory.slots.label[slot]]
        assert (np.array(Image.open(path)).transpose(2, 0, 1) == memory.pixels[slot].numpy()).all()
    assert "memory.pixels" not in store.read(model.path)[0]


def test_unchanged_memory_images_are_hard_links(tmp_path: Path) -> None:
    model = teach(tiny_model(tmp_path / "m"), "cat", "dog")
    before = {p.stat().st_ino for p in memory_images(model)}
    teach(reopened(model), "eel", "fox")
    after = {p.stat().st_ino for p in memory_images(Model.open(model.path))}
    assert len(before & after) == 4  # half of the images were replaced


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
def test_class_folder_names_are_valid_and_distinct(names: list[str], expected: list[str]) -> None:
    assert class_folder_names(names) == expected


def test_many_equal_class_names_get_folders_in_linear_time() -> None:
    """In quadratic time, opening a hostile model to learn would take hours."""
    count = 200_000
    folders = class_folder_names([("a", "A")[number % 2] for number in range(count)])
    assert folders[:4] == ["a", "A-2", "a-3", "A-4"]
    assert folders[-1] == f"A-{count}"


def test_checksums_can_be_verified_with_sha256sum(tmp_path: Path) -> None:
    model = trained_model(tmp_path / "m")
    assert model.generation is not None
    subprocess.run(
        ["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=model.path / model.generation, check=True
    )


def test_images_with_1_and_5_channels_are_restored(tmp_path: Path) -> None:
    for channels in (1, 5):
        model = tiny_model(tmp_path / str(channels), channels=channels)
        pixels = torch.randint(0, 256, (20, channels, 8, 8), dtype=torch.uint8)
        with model.lock():
            model.teach(pixels, ["a", "b"] * 10)
            model.finish({})
        assert differing_keys(learner_snapshot(reopened(model).learner), learner_snapshot(model.learner)) == set()


def test_known_classes_keep_their_outputs(tmp_path: Path) -> None:
    model = teach(tiny_model(tmp_path / "m"), "cat", "dog")
    teach(model, "dog", "fox")
    assert model.output_names == ["cat", "dog", "fox"]
    assert model.learner.tasks == [(0, 1), (1, 2)]


def test_saved_learner_opens_as_a_model_with_numbered_classes(tmp_path: Path) -> None:
    model = trained_model(tmp_path / "m")
    model.learner.notes.pop("model")
    model.learner.save(tmp_path / "plain")
    assert Model.open(tmp_path / "plain", device="cpu").output_names == ["0", "1", "2", "3"]


# ---------------------------------------------------------------------- unfinished


def interrupted(path: Path, stage: str) -> None:
    """Interrupt a model in a stage of its second task, with a save after every round."""

    def stop(event: str, learner: Any, name: str | None, done: int) -> None:
        if (event, name, done) == ("on_round_end", stage, 1):
            raise Interrupted

    model = teach(tiny_model(path), "cat", "dog")
    with pytest.raises(Interrupted):
        teach(model, "eel", "fox", callback=LambdaCallback(stop), save_interval=0.0)


@pytest.mark.parametrize("stage", ["specialist", "tangent", "projection"])
def test_interrupted_task_resumes_bit_identically(tmp_path: Path, stage: str) -> None:
    uninterrupted = trained_model(tmp_path / "uninterrupted")
    interrupted(tmp_path / "m", stage)
    again = Model.open(tmp_path / "m", device="cpu")
    assert again.pending is not None
    assert again.pending["what"] == "eel fox"
    teach(again, "eel", "fox")
    assert differing_keys(learner_snapshot(again.learner), learner_snapshot(uninterrupted.learner)) == set()
    assert [entry["folders"] for entry in reopened(again).history] == [["cat", "dog"], ["eel", "fox"]]


def test_resumed_task_uses_the_saved_number_of_threads(tmp_path: Path) -> None:
    interrupted(tmp_path / "m", "specialist")
    torch.set_num_threads(2)
    try:
        again = Model.open(tmp_path / "m", device="cpu")
        assert torch.get_num_threads() == 2  # opening a model does not change it
        teach(again, "eel", "fox")
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(1)


def test_other_images_are_refused_while_a_task_is_unfinished(tmp_path: Path) -> None:
    interrupted(tmp_path / "m", "specialist")
    with pytest.raises(UserError, match="has not finished learning eel fox"):
        teach(Model.open(tmp_path / "m", device="cpu"), "cat")


def test_undo_sets_the_number_of_kept_generations(tmp_path: Path) -> None:
    for undo in (0, 1, 2):
        model = tiny_model(tmp_path / str(undo), undo=undo)
        for k in range(4):
            teach(model, NAMES[k], save_interval=0.0)
        generations = store.generations(model.path)
        assert len(generations) == undo + 1
        assert generations[-1] == model.generation
        history_lengths = [
            len(store.read_state_unchecked(model.path / name)["notes"]["model"]["history"]) for name in generations
        ]
        assert history_lengths == list(range(4 - undo, 5))


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
    """Another process that holds the lock of `tmp_path / "m"`."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path / "m")], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_lock_error_names_the_process_that_holds_it(tmp_path: Path, holder: Any) -> None:
    with (
        pytest.raises(UserError, match=rf"being changed by process {holder.pid} on \S+ since 20"),
        lock(tmp_path / "m"),
    ):
        pass


def test_lock_waits_for_the_other_process(tmp_path: Path, holder: Any) -> None:
    began = time.monotonic()
    with pytest.raises(UserError, match="being changed"), lock(tmp_path / "m", wait=0.5):
        pass
    assert time.monotonic() - began >= 0.5
    holder.kill()  # the operating system releases the lock of a dead process
    with lock(tmp_path / "m", wait=5):
        assert json.loads((tmp_path / "m" / "LOCK.json").read_text())["pid"] == os.getpid()


def test_lock_excludes_the_same_process_too(tmp_path: Path) -> None:
    with lock(tmp_path / "m"), pytest.raises(UserError, match=f"process {os.getpid()} "), lock(tmp_path / "m"):
        pass


def test_save_takes_the_lock(tmp_path: Path, holder: Any) -> None:
    model = tiny_model(tmp_path / "m")
    model.teach(*tiny_task("cat", "dog"), save_interval=1e9)
    with pytest.raises(UserError, match=f"being changed by process {holder.pid}"):
        model.save()
    holder.kill()
    holder.wait()
    model.save()
    assert reopened(model).output_names == ["cat", "dog"]


def test_unused_lock_leaves_no_folder(tmp_path: Path) -> None:
    with lock(tmp_path / "m"):
        assert (tmp_path / "m" / "LOCK").exists()
    assert list(tmp_path.iterdir()) == []


def test_model_changed_by_another_process_is_not_overwritten(tmp_path: Path) -> None:
    first = trained_model(tmp_path / "m")
    second = reopened(first)
    second.save()
    with pytest.raises(UserError, match="changed by another process"):
        first.save()
    assert differing_keys(learner_snapshot(reopened(second).learner), learner_snapshot(second.learner)) == set()


def test_generation_replaced_while_reading_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = trained_model(tmp_path / "m", undo=0)
    real, raced = store.read_generation, []

    def slow(root: Path, name: str, *limit: Any) -> Any:
        if len(raced) < 2:
            raced.append(name)
            model.save()  # this removes the generation that is about to be read
        return real(root, name, *limit)

    monkeypatch.setattr(store, "read_generation", slow)
    assert reopened(model).generation == model.generation
    assert len(raced) == 2


# ---------------------------------------------------------------------- failures


def test_full_disk_leaves_the_model_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = teach(tiny_model(tmp_path / "m"), "cat", "dog")
    before = learner_snapshot(model.learner)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Image.Image, "save", full)
        with pytest.raises(UserError, match="No space left on device"):
            teach(model, "eel", "fox")
    assert differing_keys(learner_snapshot(Model.open(tmp_path / "m", device="cpu").learner), before) == set()
    assert not list((tmp_path / "m").glob(".draft-*"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root can write anywhere")
def test_read_only_folder_is_a_user_error(tmp_path: Path) -> None:
    model = trained_model(tmp_path / "m")
    os.chmod(tmp_path / "m", 0o555)
    try:
        with pytest.raises(UserError, match="Permission denied"):
            model.save()
        assert reopened(model).output_names == list(NAMES)
    finally:
        os.chmod(tmp_path / "m", 0o755)


def test_lock_without_permission_is_a_user_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: Any) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    (tmp_path / "m").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", denied)
        with pytest.raises(UserError, match=r"cannot write to the model folder .*: Permission denied"):
            lock(tmp_path / "m").__enter__()


def test_gpu_out_of_memory_is_a_user_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = teach(tiny_model(tmp_path / "m"), "cat", "dog")
    before = learner_snapshot(model.learner)

    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    with monkeypatch.context() as patch:
        patch.setattr(type(model.learner.net), "forward", full)
        with pytest.raises(UserError, match="not enough GPU memory"):
            teach(model, "eel", "fox")
        with pytest.raises(UserError, match="not enough GPU memory"):
            Model.open(tmp_path / "m", device="cpu").predict_proba(tiny_task("cat")[0])
    assert differing_keys(learner_snapshot(Model.open(tmp_path / "m", device="cpu").learner), before) == set()


def test_missing_memory_image_is_dropped_and_named(tmp_path: Path) -> None:
    model = trained_model(tmp_path / "m", undo=0)
    missing = memory_images(model)[0]
    missing.unlink()
    again = reopened(model)
    assert again.damaged_images == [missing.relative_to(model.path / str(model.generation)).as_posix()]
    assert len(again.learner.memory) == len(model.learner.memory) - 1
    with pytest.warns(UserWarning, match="lost 1 damaged image"):
        itl.load(model.path, device="cpu")


def test_create_refuses_a_folder_with_a_model(tmp_path: Path) -> None:
    trained_model(tmp_path / "m")
    with pytest.raises(UserError, match="already contains a model"):
        tiny_model(tmp_path / "m")


def test_lock_can_be_taken_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(locks, "write_text_atomic", full)
    with lock(tmp_path / "m"):
        assert (tmp_path / "m" / "LOCK").exists()


def test_predict_accepts_all_image_forms(tmp_path: Path) -> None:
    model = trained_model(tmp_path)
    pixels = torch.randint(0, 256, (3, 3, 8, 8), dtype=torch.uint8)
    probabilities = model.predict_proba(pixels)
    assert probabilities.shape == (3, 4)
    np.testing.assert_allclose(probabilities.sum(1), 1)
    channels_last = pixels.permute(0, 2, 3, 1).numpy()
    for images in (pixels.numpy(), channels_last, [Image.fromarray(image) for image in channels_last]):
        assert np.array_equal(model.predict_proba(images), probabilities)
        assert model.predict(images).tolist() == [NAMES[k] for k in probabilities.argmax(1)]


def test_memory_images_replaced_while_reading_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, removed = trained_model(tmp_path), []
    original_read = MemoryImageFiles.read

    def read(self: MemoryImageFiles, root: Path, *rest: Any) -> Any:
        if not removed:  # another process saves, which removes this generation
            removed.append(root)
            model.save(private=True)
            assert not root.exists()
        return original_read(self, root, *rest)

    monkeypatch.setattr(MemoryImageFiles, "read", read)
    assert Model.open(model.path, device="cpu").generation == model.generation != removed[0].name


def test_temporarily_unreadable_image_is_not_called_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = trained_model(tmp_path)

    def refuse(path: Path, **options: Any) -> Any:
        raise OSError(errno.EMFILE, "Too many open files", str(path))

    monkeypatch.setattr(Image, "open", refuse)
    with pytest.raises(
        store.TemporarilyUnreadable, match=r"cannot read the model folder .*: .*\.png: Too many open files$"
    ):
        reopened(model)
