"""Limits on time and memory, and replay of the folders that still exist."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from itl import UserError
from itl.apps.model.edit import forget
from itl.apps.teaching import Teacher, TeachingOptions, default_settings, plan_lessons
from itl.apps.teaching.choices import training_choice
from itl.apps.teaching.default_settings import LessonSize, new_model_settings
from itl.apps.teaching.estimate import Speed
from itl.callbacks.base import Callback
from itl.cli.display.learn_tables import learn_summary
from itl.settings import MAX_COUNT
from support.image_folders import IMAGE_SETTINGS, write_images
from support.tiny import differing_keys, learner_snapshot
from support.tiny_lessons import model, teach

NO_EPOCHS = {name: value for name, value in IMAGE_SETTINGS.items() if name != "specialist.epochs"}


@pytest.fixture
def slow_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every step appear to take one second."""
    monkeypatch.setattr(default_settings, "measure_speed", lambda *args: Speed(1.0, 0.0, 0.0))


@pytest.mark.usefixtures("slow_steps")
def test_minutes_limit_the_steps_and_epochs_replace_them() -> None:
    lesson = LessonSize(320, 0, 1000, 32)
    chosen = new_model_settings(TeachingOptions(device="cpu", minutes=2.0), lesson)
    assert (chosen["specialist.steps"], chosen["generalist"]) == (120, "none")
    with_generalist = TeachingOptions(device="cpu", minutes=20.0, settings={"generalist": "tangent"})
    small = new_model_settings(with_generalist, LessonSize(320, 0, 64, 32))
    assert small["specialist.steps"] == 1200 - 2 * 2 * small["tangent.epochs"]  # two batches, and the projection
    fixed = new_model_settings(TeachingOptions(device="cpu", settings={"specialist.epochs": 7}), lesson)
    assert (fixed["specialist.epochs"], fixed["specialist.steps"], fixed["specialist.patience"]) == (7, None, None)
    both = TeachingOptions(device="cpu", minutes=1.0, settings={"specialist.epochs": 70})
    assert new_model_settings(both, lesson)["specialist.steps"] == 60
    longest = TeachingOptions(device="cpu", minutes=100_000.0)
    assert new_model_settings(longest, lesson)["specialist.steps"] == MAX_COUNT  # the time suffices for 6,000,000


@pytest.mark.parametrize("minutes", [0.0, -1.0, float("nan"), float("inf")])
def test_invalid_minutes_are_refused(minutes: float) -> None:
    with pytest.raises(UserError, match="--minutes must be more than 0 and at most 100000, not"):
        TeachingOptions(minutes=minutes)


@pytest.mark.usefixtures("slow_steps")
def test_minutes_are_kept_for_later_lessons_and_planned(tmp_path: Path) -> None:
    folders = [write_images(tmp_path / name, name, each=40) for name in ("ant", "bee")]
    teach(tmp_path / "m", folders[0], settings=NO_EPOCHS, minutes=0.2)
    settings = model(tmp_path / "m").learner.settings.specialist
    assert (settings.name, settings.steps) == ("er-balanced", 6)  # at least half of the 12 steps are for new images
    teacher, _ = teach(tmp_path / "m", folders[1], settings={})
    assert teacher.minutes == 0.2
    assert model(tmp_path / "m").learner.settings.specialist.steps == 6
    plan = plan_lessons(Teacher(tmp_path / "m", [write_images(tmp_path / "cat", "cat")], TeachingOptions(device="cpu")))
    assert plan["minutes"] == 0.2
    assert plan["lessons"][0]["epochs"]["until_converged"]
    assert "at most 0.2 min for each lesson" in str(training_choice(teacher))


@pytest.mark.usefixtures("slow_steps")
def test_training_that_the_time_limit_ended_is_reported(tmp_path: Path) -> None:
    folders = [write_images(tmp_path / name, name, each=40) for name in ("ant", "bee", "cat")]
    teacher, (result,) = teach(tmp_path / "m", folders[0], settings=NO_EPOCHS, minutes=0.2)
    assert result.to_dict()["time_limit_reached"]
    remark = str(learn_summary(teacher, [result], teacher.evaluate()).renderables[0])
    assert remark.startswith("ant: the limit of 0.2 min ended the training; ")
    _, (converged,) = teach(tmp_path / "m", folders[1], settings={}, minutes=1000.0)
    _, (all_epochs,) = teach(tmp_path / "m", folders[2], settings={"specialist.steps": 2})
    assert not converged.time_limit_reached
    assert not all_epochs.time_limit_reached  # the user's own limit


def test_new_memory_holds_64_mib_and_an_existing_one_keeps_its_size(tmp_path: Path) -> None:
    folders = [write_images(tmp_path / name, name) for name in ("ant", "bee")]
    options = TeachingOptions(size=8, device="cpu", settings=IMAGE_SETTINGS)
    plan = plan_lessons(Teacher(tmp_path / "new", folders, options))
    assert (plan["buffer"], plan["memory_bytes"]) == ((64 << 20) // 192, (64 << 20) // 192 * 192)
    assert TeachingOptions(size=32).buffer_for(32) == 21845
    assert TeachingOptions(method="gss").buffer_for(32) == 200
    teach(tmp_path / "m", folders[0], buffer=12)
    teach(tmp_path / "m", folders[1])
    assert model(tmp_path / "m").learner.memory.size == 12
    plan = plan_lessons(Teacher(tmp_path / "m", [write_images(tmp_path / "cat", "cat")], TeachingOptions(device="cpu")))
    assert plan["buffer"] == 12


class Trained(Callback):
    """Collects the number of training images of each lesson."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    def on_stage_start(self, learner: Any, stage: Any) -> None:
        if stage.name == "specialist":
            self.counts.append(len(learner.specialist.context.labels))


def test_folders_that_exist_are_learned_again(tmp_path: Path) -> None:
    folders = [write_images(tmp_path / name, name) for name in ("ant", "bee", "cat", "dog")]
    trained = Trained()
    teach(tmp_path / "m", *folders[:2], callback=trained, buffer=4)
    shutil.rmtree(folders[0])
    _, (result,) = teach(tmp_path / "m", folders[2], callback=trained, replay_folders=True)
    train = model(tmp_path / "m").history[1]["classes"]["bee"]
    assert result.replayed == train - 2  # two of them are in memory; ant's folder is gone
    assert trained.counts[-1] == sum(result.train_counts.values()) + result.replayed
    with model(tmp_path / "m").lock():
        forget(model(tmp_path / "m"), classes=["bee"])
    _, (result,) = teach(tmp_path / "m", folders[3], replay_folders=True)
    assert result.replayed == 0  # both folders were learned before something was forgotten


def test_learning_again_resumes_with_the_same_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [write_images(tmp_path / name, name) for name in ("ant", "bee")]
    teach(tmp_path / "m", folders[0], buffer=4)
    shutil.copytree(tmp_path / "m", tmp_path / "uninterrupted")
    teach(tmp_path / "uninterrupted", folders[1], replay_folders=True)
    monkeypatch.setenv("ITL_SAVE_EVERY", "0")

    class Interrupt(Callback):
        def on_round_end(self, learner: Any, stage: Any, epoch: int, loss: float) -> None:
            if stage.name == "tangent":  # the memory has changed by then
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        teach(tmp_path / "m", folders[1], callback=Interrupt(), replay_folders=True)
    moved = folders[0].rename(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"started to learn bee with other images of earlier folders; restore them"):
        teach(tmp_path / "m", folders[1], replay_folders=True)
    moved.rename(folders[0])
    with pytest.raises(UserError, match="has not finished learning bee with --minutes 5; finish it first"):
        teach(tmp_path / "m", folders[1], minutes=3.0)
    teach(tmp_path / "m", folders[1])  # an unfinished lesson keeps the options it was started with
    whole, resumed = (model(tmp_path / name).learner for name in ("uninterrupted", "m"))
    assert not differing_keys(learner_snapshot(whole), learner_snapshot(resumed))
