"""A learn that was interrupted goes on with the same command, and with no other."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from itl import UserError
from itl.apps.model.edit import undo
from itl.apps.teaching import Teacher
from itl.callbacks.base import Callback
from support.image_folders import write_pictures
from support.tiny import Teller, differing, photograph
from support.tiny_lessons import QUICK, model, teach


class PlugPulled(Exception):
    """The process ends here."""


def pull_the_plug(at: tuple[int, str, int], save: Path) -> Callback:
    """Save and end in task `at[0]`, stage `at[1]`, after epoch `at[2]`."""

    def listen(event: str, learner: Any, stage: str | None, epoch: int) -> None:
        if event == "round_ends" and (len(learner.tasks), stage, epoch) == at:
            raise PlugPulled

    return Teller(listen)


@pytest.mark.parametrize("at", [(1, "specialist", 1), (2, "specialist", 2), (2, "tangent", 1), (2, "projection", 1)])
def test_the_same_command_goes_on_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: tuple[int, str, int]
) -> None:
    folders = [write_pictures(tmp_path / name, name, other) for name, other in (("ant", "bee"), ("cat", "ant"))]
    teach(tmp_path / "whole", *folders)
    monkeypatch.setenv("ITL_SAVE_EVERY", "0")
    with pytest.raises(PlugPulled):
        teach(tmp_path / "m", *folders, callback=pull_the_plug(at, tmp_path / "m"))
    assert model(tmp_path / "m").pending is not None
    _, results = teach(tmp_path / "m", *folders)
    assert [result.learned for result in results] == [at[0] == 1, True]
    assert results[1].new_classes == ["cat"]  # though it had its output before the interruption
    whole, resumed = model(tmp_path / "whole"), model(tmp_path / "m")
    assert not differing(photograph(whole.learner), photograph(resumed.learner))
    drop = ("date", "seconds")
    assert [{k: v for k, v in e.items() if k not in drop} for e in whole.history] == [
        {k: v for k, v in e.items() if k not in drop} for e in resumed.history
    ]


def stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """A model interrupted in the second of two folders."""
    folders = [write_pictures(tmp_path / name, name) for name in ("ant", "bee")]
    monkeypatch.setenv("ITL_SAVE_EVERY", "0")
    with pytest.raises(PlugPulled):
        teach(tmp_path / "m", *folders, callback=pull_the_plug((2, "specialist", 1), tmp_path / "m"))
    return folders


def test_a_folder_changed_in_between_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = stopped(tmp_path, monkeypatch)
    before = (tmp_path / "m" / "CURRENT").read_text()
    write_pictures(folders[1], "bee", each=3, seed=4)
    with pytest.raises(UserError, match=r"bee has changed since .*m began to learn it; put it back.*itl undo"):
        teach(tmp_path / "m", *folders)
    assert (tmp_path / "m" / "CURRENT").read_text() == before


def test_a_finished_folder_that_changed_in_between_is_not_begun_before_the_unfinished_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = stopped(tmp_path, monkeypatch)
    write_pictures(folders[0], "ant", each=3, seed=4)
    _, results = teach(tmp_path / "m", *folders)
    assert [result.learned for result in results] == [False, True]
    assert len(model(tmp_path / "m").learner.tasks) == 2


def test_another_command_does_not_disturb_an_unfinished_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = stopped(tmp_path, monkeypatch)
    with pytest.raises(UserError, match=r"in the middle of learning bee; go on with that first .*itl undo"):
        teach(tmp_path / "m", write_pictures(tmp_path / "new", "cat"))
    with pytest.raises(UserError, match=r"in the middle of learning bee with specialist.lr=0.05; finish that first"):
        teach(tmp_path / "m", *folders, settings={"specialist.lr": 0.01})
    _, (result,) = teach(tmp_path / "m", folders[1])  # the unfinished folder alone goes on, too
    assert result.learned


def test_an_unfinished_learn_goes_on_as_it_was_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = stopped(tmp_path, monkeypatch)
    with pytest.raises(UserError, match=r"in the middle of learning bee without --no-test; finish that first"):
        teach(tmp_path / "m", *folders, test=False)
    with pytest.raises(UserError, match=r"in the middle of learning bee with a memory of 12 images; finish that first"):
        teach(tmp_path / "m", *folders, buffer=30)
    _, results = teach(tmp_path / "m", *folders, buffer=12)
    assert [result.learned for result in results] == [False, True]


def test_an_unfinished_learn_goes_on_where_the_model_alone_has_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = stopped(tmp_path, monkeypatch)
    elsewhere = tmp_path / "far" / "away"
    elsewhere.parent.mkdir()
    (tmp_path / "m").rename(elsewhere)
    with pytest.raises(UserError, match="in the middle of learning bee; go on with that first"):  # the name alone
        teach(elsewhere, write_pictures(tmp_path / "other" / "bee", "cat"))
    _, results = teach(elsewhere, *folders)
    assert [result.learned for result in results] == [False, True]


def test_a_request_to_stop_saves_and_the_same_command_goes_on(tmp_path: Path) -> None:
    folders = [write_pictures(tmp_path / name, name) for name in ("ant", "bee")]
    teach(tmp_path / "whole", *folders)
    asked: list[int] = []

    def stop() -> bool:
        asked.append(0)
        return len(asked) > 11  # after 10 images were read and a round was learned

    teacher = Teacher(tmp_path / "m", folders, QUICK)
    first, second = teacher.lesson_results()
    teacher.teach(first)
    with pytest.raises(KeyboardInterrupt):
        teacher.teach(second, stop=stop)
    taught = model(tmp_path / "m")
    assert taught.pending is not None
    assert taught.learner.position != ("specialist", 0)
    teach(tmp_path / "m", *folders)
    assert not differing(photograph(model(tmp_path / "whole").learner), photograph(model(tmp_path / "m").learner))


def test_states_of_a_model_whose_current_is_lost_are_not_written_over(tmp_path: Path) -> None:
    for name in ("ant", "bee"):
        teach(tmp_path / "m", write_pictures(tmp_path / name, name))
    (tmp_path / "m" / "CURRENT").unlink()
    with pytest.raises(UserError, match=r"CURRENT is missing; itl undo .*m mends it"):
        teach(tmp_path / "m", tmp_path / "ant")
    undo(tmp_path / "m")
    assert model(tmp_path / "m").names == ["ant", "bee"]


def test_an_undo_of_the_first_learn_that_was_cut_short_is_no_obstacle(tmp_path: Path) -> None:
    """CURRENT is gone by then, states of an unfinished learn are still there."""
    asked = iter([*[False] * 11, True])
    teacher = Teacher(tmp_path / "m", [write_pictures(tmp_path / "ant", "ant")], QUICK)
    with pytest.raises(KeyboardInterrupt):
        teacher.teach(teacher.lesson_results()[0], stop=lambda: next(asked))
    shutil.copytree(tmp_path / "m" / "generation-000001", tmp_path / "m" / "generation-000002")
    (tmp_path / "m" / "CURRENT").unlink()
    teach(tmp_path / "m", tmp_path / "ant")
    assert model(tmp_path / "m").pending is None
