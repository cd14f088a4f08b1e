"""An interrupted lesson is resumed by the same call, and other calls are refused."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from itl import UserError
from itl.apps.model.edit import undo
from itl.apps.teaching import Teacher
from itl.callbacks.base import Callback
from support.image_folders import write_images
from support.records import without_keys
from support.tiny import Interrupted, LambdaCallback, differing_keys, learner_snapshot
from support.tiny_lessons import TINY_OPTIONS, model, teach


def interrupt_at(at: tuple[int, str, int]) -> Callback:
    """Raise `Interrupted` in task `at[0]`, stage `at[1]`, after epoch `at[2]`."""

    def listen(event: str, learner: Any, stage: str | None, epoch: int) -> None:
        if event == "on_round_end" and (len(learner.tasks), stage, epoch) == at:
            raise Interrupted

    return LambdaCallback(listen)


@pytest.mark.parametrize("at", [(1, "specialist", 1), (2, "specialist", 2), (2, "tangent", 1), (2, "projection", 1)])
def test_same_call_resumes_bit_identically(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: tuple[int, str, int]
) -> None:
    folders = [write_images(tmp_path / name, name, other) for name, other in (("ant", "bee"), ("cat", "ant"))]
    teach(tmp_path / "uninterrupted", *folders)
    monkeypatch.setenv("ITL_SAVE_EVERY", "0")
    with pytest.raises(Interrupted):
        teach(tmp_path / "m", *folders, callback=interrupt_at(at))
    assert model(tmp_path / "m").pending is not None
    _, results = teach(tmp_path / "m", *folders)
    assert [result.learned for result in results] == [at[0] == 1, True]
    assert results[1].new_classes == ["cat"]  # although its output existed before the interruption
    uninterrupted, resumed = model(tmp_path / "uninterrupted"), model(tmp_path / "m")
    assert not differing_keys(learner_snapshot(uninterrupted.learner), learner_snapshot(resumed.learner))
    expected, actual = (without_keys(one.history, "date", "seconds") for one in (uninterrupted, resumed))
    assert actual == expected


def test_same_teacher_resumes_after_an_interruption_within_a_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ITL_SAVE_EVERY", "0")
    folder = write_images(tmp_path / "ant", "ant", "bee")
    with pytest.raises(Interrupted):
        teach(tmp_path / "m", folder, callback=interrupt_at((1, "specialist", 1)))
    teacher = Teacher(tmp_path / "m", [folder], replace(TINY_OPTIONS, buffer=None))
    (result,) = teacher.lesson_results()
    with pytest.raises(Interrupted):
        teacher.teach(result, interrupt_at((1, "specialist", 2)))
    teacher.model.learner._inside_round = True  # type: ignore[union-attr] # as if it had stopped within a round
    teacher.teach(result)
    assert model(tmp_path / "m").pending is None


def interrupted_in_second_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Interrupt teaching in the second of two folders; return the folders."""
    folders = [write_images(tmp_path / name, name) for name in ("ant", "bee")]
    monkeypatch.setenv("ITL_SAVE_EVERY", "0")
    with pytest.raises(Interrupted):
        teach(tmp_path / "m", *folders, callback=interrupt_at((2, "specialist", 1)))
    return folders


def test_resuming_with_another_number_of_threads_works_and_is_announced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = interrupted_in_second_folder(tmp_path, monkeypatch)
    changed = replace(TINY_OPTIONS, buffer=None, threads=2)
    remark = Teacher(tmp_path / "m", folders, changed).thread_remark()
    assert remark is not None
    assert remark.startswith("continuing with 2 instead of 1 threads: the result will not be bit-identical")
    assert Teacher(tmp_path / "m", folders, replace(changed, threads=1)).thread_remark() is None
    try:
        _, results = teach(tmp_path / "m", *folders, threads=2)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert results[1].learned
    assert model(tmp_path / "m").learner.threads == 2
    with pytest.raises(UserError, match="--threads must be 1 to 1024, not 0"):
        replace(TINY_OPTIONS, threads=0)


def test_changed_unfinished_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = interrupted_in_second_folder(tmp_path, monkeypatch)
    before = (tmp_path / "m" / "CURRENT").read_text()
    write_images(folders[1], "bee", each=3, seed=4)
    with pytest.raises(UserError, match=r"bee has changed since .*m started to learn it; restore.*itl undo"):
        teach(tmp_path / "m", *folders)
    assert (tmp_path / "m" / "CURRENT").read_text() == before


def test_changed_finished_folder_is_not_learned_before_the_unfinished_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = interrupted_in_second_folder(tmp_path, monkeypatch)
    write_images(folders[0], "ant", each=3, seed=4)
    _, results = teach(tmp_path / "m", *folders)
    assert [result.learned for result in results] == [False, True]
    assert len(model(tmp_path / "m").learner.tasks) == 2


def test_other_folder_or_settings_are_refused_while_unfinished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = interrupted_in_second_folder(tmp_path, monkeypatch)
    with pytest.raises(UserError, match=r"has not finished learning bee; finish it first .*itl undo"):
        teach(tmp_path / "m", write_images(tmp_path / "new", "cat"))
    with pytest.raises(UserError, match=r"has not finished learning bee with specialist.lr=0.05; finish it first"):
        teach(tmp_path / "m", *folders, settings={"specialist.lr": 0.01})
    _, (result,) = teach(tmp_path / "m", folders[1])  # giving the unfinished folder alone resumes too
    assert result.learned


def test_unfinished_lesson_keeps_its_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = interrupted_in_second_folder(tmp_path, monkeypatch)
    with pytest.raises(UserError, match=r"has not finished learning bee without --no-test; finish it first"):
        teach(tmp_path / "m", *folders, test=False)
    with pytest.raises(UserError, match=r"has not finished learning bee with a memory of 12 images; finish it first"):
        teach(tmp_path / "m", *folders, buffer=30)
    _, results = teach(tmp_path / "m", *folders, buffer=12)
    assert [result.learned for result in results] == [False, True]


def test_unfinished_lesson_resumes_after_the_model_was_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = interrupted_in_second_folder(tmp_path, monkeypatch)
    elsewhere = tmp_path / "far" / "away"
    elsewhere.parent.mkdir()
    (tmp_path / "m").rename(elsewhere)
    with pytest.raises(UserError, match="has not finished learning bee; finish it first"):  # only the name is the same
        teach(elsewhere, write_images(tmp_path / "other" / "bee", "cat"))
    _, results = teach(elsewhere, *folders)
    assert [result.learned for result in results] == [False, True]


def test_stop_saves_and_the_same_call_resumes(tmp_path: Path) -> None:
    folders = [write_images(tmp_path / name, name) for name in ("ant", "bee")]
    teach(tmp_path / "uninterrupted", *folders)
    calls: list[int] = []

    def stop() -> bool:
        calls.append(0)
        return len(calls) > 11  # after 10 images and one training round

    teacher = Teacher(tmp_path / "m", folders, TINY_OPTIONS)
    first, second = teacher.lesson_results()
    teacher.teach(first)
    with pytest.raises(KeyboardInterrupt):
        teacher.teach(second, stop=stop)
    taught = model(tmp_path / "m")
    assert taught.pending is not None
    assert taught.learner.position != ("specialist", 0)
    teach(tmp_path / "m", *folders)
    assert not differing_keys(
        learner_snapshot(model(tmp_path / "uninterrupted").learner), learner_snapshot(model(tmp_path / "m").learner)
    )


def test_generations_without_current_are_not_overwritten(tmp_path: Path) -> None:
    for name in ("ant", "bee"):
        teach(tmp_path / "m", write_images(tmp_path / name, name))
    (tmp_path / "m" / "CURRENT").unlink()
    with pytest.raises(UserError, match=r"CURRENT is missing; repair it with itl undo .*m"):
        teach(tmp_path / "m", tmp_path / "ant")
    undo(tmp_path / "m")
    assert model(tmp_path / "m").output_names == ["ant", "bee"]


def test_interrupted_undo_of_the_first_lesson_can_be_taught_again(tmp_path: Path) -> None:
    """CURRENT has been removed, but generations of the unfinished lesson are left."""
    answers = iter([*[False] * 11, True])
    teacher = Teacher(tmp_path / "m", [write_images(tmp_path / "ant", "ant")], TINY_OPTIONS)
    with pytest.raises(KeyboardInterrupt):
        teacher.teach(teacher.lesson_results()[0], stop=lambda: next(answers))
    shutil.copytree(tmp_path / "m" / "generation-000001", tmp_path / "m" / "generation-000002")
    (tmp_path / "m" / "CURRENT").unlink()
    teach(tmp_path / "m", tmp_path / "ant")
    assert model(tmp_path / "m").pending is None
