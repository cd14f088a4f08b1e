"""Teaching a model from image folders: classes, test images, evaluation, refused options, memory and settings."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from itl import UserError, nets
from itl.apps.model.edit import forget, rename, resize
from itl.apps.teaching import GroupAccuracy, HeldOutScores, LessonResult, Teacher, TeachingOptions
from itl.apps.teaching.held_out_evaluation import fallen_classes
from itl.checkpoint.lock import lock
from itl.cli.display.learn_tables import learn_summary
from support.image_folders import IMAGE_SETTINGS, write_images
from support.tiny import LambdaCallback, differing_keys, learner_snapshot
from support.tiny_lessons import TINY_OPTIONS, model, teach


def files(classes: dict[str, list[Path]]) -> set[Path]:
    return {file for some in classes.values() for file in some}


def teach_grown_folder(path: Path, folder: Path, each: int, learned: set[Path]) -> tuple[Teacher, set[Path]]:
    """Add images to a folder and teach it; return the teacher and the held-out images, none of which was learned."""
    write_images(folder, "ant", "bee", each=each, seed=7)
    teacher, (result,) = teach(path, folder)
    held_out = files(teacher.lessons[0].files.test)
    assert result.learned
    assert held_out
    assert not held_out & learned
    return teacher, held_out


def test_first_folder_creates_the_model_and_later_ones_extend_it(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "one", "bee", "ant")
    teacher, (result,) = teach(tmp_path / "m", folder)
    assert (result.learned, result.new_classes) == (True, ["ant", "bee"])
    assert result.train_counts.keys() == {"ant", "bee"}
    assert sum(result.train_counts.values()) + sum(result.test_counts.values()) == 20
    teacher, results = teach(tmp_path / "m", write_images(tmp_path / "two", "cat"), write_images(tmp_path / "3", "dog"))
    assert [result.new_classes for result in results] == [["cat"], ["dog"]]
    taught = model(tmp_path / "m")
    assert taught.output_names == ["ant", "bee", "cat", "dog"]
    assert taught.learner.tasks == [(0, 1), (2,), (3,)]
    assert [entry["name"] for entry in taught.history] == ["one", "two", "3"]
    scores = teacher.evaluate()
    assert [group.name for group in scores.tasks] == ["one", "two", "3"]
    assert [group.name for group in scores.classes] == taught.output_names
    json.dumps(scores.to_dict())


def test_known_class_name_is_the_same_class(tmp_path: Path) -> None:
    teach(tmp_path / "m", write_images(tmp_path / "one", "ant", "bee"))
    _, (result,) = teach(tmp_path / "m", write_images(tmp_path / "two", "bee", "cat", seed=1))
    assert result.new_classes == ["cat"]
    taught = model(tmp_path / "m")
    assert taught.output_names == ["ant", "bee", "cat"]
    assert taught.learner.tasks == [(0, 1), (1, 2)]
    _, (result,) = teach(tmp_path / "m", write_images(tmp_path / "three", "ant", seed=2))
    assert result.new_classes == []
    assert model(tmp_path / "m").learner.net.classifier.out_features == 3


def test_one_call_with_several_folders_equals_several_calls(tmp_path: Path) -> None:
    folders = [write_images(tmp_path / name, name) for name in ("ant", "bee", "cat")]
    for folder in folders:
        teach(tmp_path / "separate_calls", folder)
    teach(tmp_path / "one_call", *folders)
    assert not differing_keys(
        learner_snapshot(model(tmp_path / "separate_calls").learner),
        learner_snapshot(model(tmp_path / "one_call").learner),
    )


def test_test_images_are_not_trained_on(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    write_images(folder / "train", "ant", "bee")
    write_images(folder / "test", "ant", "bee", each=3, seed=5)
    seen = []

    def listen(event: str, learner: Any, stage: str | None, epoch: int) -> None:
        if event == "on_memory_update":
            seen.append(learner._pool_cache[0].pixels.clone())

    teacher, (result,) = teach(tmp_path / "m", folder, callback=LambdaCallback(listen))
    assert (sum(result.train_counts.values()), sum(result.test_counts.values())) == (20, 6)
    tests = [np.asarray(Image.open(path)).transpose(2, 0, 1) for path in folder.glob("test/*/*")]
    assert not any((seen[0].numpy() == image).all((1, 2, 3)).any() for image in tests)
    assert teacher.evaluate().tasks[0].images == 6


def test_test_images_of_an_unknown_class_are_skipped(tmp_path: Path) -> None:
    teach(tmp_path / "m", write_images(tmp_path / "one", "ant"))
    folder = tmp_path / "two"
    write_images(folder / "train", "bee")
    write_images(folder / "test", "ant", "bee", "cat", each=3, seed=5)
    teacher, (result,) = teach(tmp_path / "m", folder)
    assert result.test_counts == {"ant": 3, "bee": 3}
    assert [(p.path.name, "never learned" in p.reason) for p in result.skipped] == [("cat", True)]
    assert teacher.evaluate().tasks[-1].images == 6


def test_all_images_are_trained_on_without_test(tmp_path: Path) -> None:
    teacher, (result,) = teach(tmp_path / "m", write_images(tmp_path / "one", "ant", "bee"), test=False)
    assert result.train_counts == {"ant": 10, "bee": 10}
    assert result.test_counts == {}
    assert teacher.evaluate().accuracy is None


def test_images_learned_without_test_are_never_test_images(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "one", "ant", "bee", each=20)
    learned = set(folder.glob("*/*"))
    teach(tmp_path / "m", folder, test=False)
    _, (result,) = teach(tmp_path / "m", folder)
    assert (result.learned, result.test_counts) == (False, {})
    teacher, held_out = teach_grown_folder(tmp_path / "m", folder, 20, learned)
    assert teacher.evaluate().tasks[-1].images == len(held_out)


def test_scores_compare_with_accuracy_when_taught(tmp_path: Path) -> None:
    teach(tmp_path / "m", write_images(tmp_path / "one", "ant", "bee", each=20))
    before = model(tmp_path / "m").history[0]["accuracy"]
    teacher, _ = teach(tmp_path / "m", write_images(tmp_path / "two", "cat", "dog", each=20))
    scores = teacher.evaluate()
    first = scores.tasks[0]
    assert first.accuracy_when_taught == before["task"]
    test_images = teacher.evaluation.test_images["../one"]
    assert test_images is not None
    classes = np.array(["ant", "bee", "cat", "dog"])
    predicted = classes[model(tmp_path / "m").predict_proba(test_images.pixels).argmax(1)]
    right = predicted == test_images.labels
    assert first.accuracy == pytest.approx(100 * right.mean())
    assert first.forgotten == pytest.approx(before["task"] - first.accuracy)
    ants = [good for good, name in zip(right, test_images.labels, strict=True) if name == "ant"]
    assert scores.classes[0].accuracy == pytest.approx(100 * np.mean(ants))
    assert scores.classes[0].accuracy_when_taught == before["classes"]["ant"]


def test_class_that_falls_by_more_than_five_points_is_reported(tmp_path: Path) -> None:
    teacher, _ = teach(tmp_path / "m", write_images(tmp_path / "one", "ant", "bee", "cat", each=8))
    assert teacher.model is not None
    teacher.model.history[-1]["accuracy"]["classes"] = {"ant": 90.0, "bee": 90.0, "cat": 40.0}
    scores = HeldOutScores(
        [], [GroupAccuracy("ant", 20, 84.9), GroupAccuracy("bee", 20, 85.0), GroupAccuracy("cat", 0, None)], 85.0
    )
    assert fallen_classes(teacher.model, scores) == {"ant": (90.0, 84.9)}
    result = LessonResult(teacher.lessons[0], learned=True, fallen_classes={"ant": (90.0, 84.9)})
    assert result.to_dict()["fallen"] == {"ant": {"before": 90.0, "after": 84.9}}
    remark = str(learn_summary(teacher, [result], scores).renderables[0])
    assert "ant fell from 90.0 to 84.9 % in this lesson" in remark
    assert remark.endswith(f"itl undo {tmp_path / 'm'}")


def test_missing_folder_is_not_evaluated(tmp_path: Path) -> None:
    teach(tmp_path / "m", write_images(tmp_path / "one", "ant", "bee"))
    shutil.rmtree(tmp_path / "one")
    teacher, _ = teach(tmp_path / "m", write_images(tmp_path / "two", "cat"))
    missing, present = teacher.evaluate().tasks
    assert (missing.name, missing.images, missing.accuracy, missing.forgotten) == ("one", 0, None, None)
    assert missing.accuracy_when_taught is not None
    assert present.images > 0


def test_renamed_class_is_still_evaluated(tmp_path: Path) -> None:
    teach(tmp_path / "m", write_images(tmp_path / "one", "ant", "bee"))
    changed = model(tmp_path / "m")
    rename(changed, "ant", "emmet")
    teacher, _ = teach(tmp_path / "m", write_images(tmp_path / "two", "cat"))
    assert {group.name: group.images > 0 for group in teacher.evaluate().classes} == {
        "emmet": True,
        "bee": True,
        "cat": True,
    }


def test_accuracy_when_taught_follows_renames_and_merges(tmp_path: Path) -> None:
    teach(tmp_path / "m", write_images(tmp_path / "one", "ant", "bee"))
    changed = model(tmp_path / "m")
    known = changed.history[0]["accuracy"]["classes"]
    rename(changed, "ant", "emmet")
    teacher, _ = teach(tmp_path / "m", write_images(tmp_path / "two", "cat"))
    was = {group.name: group.accuracy_when_taught for group in teacher.evaluate().classes}
    assert (was["emmet"], was["bee"]) == (known["ant"], known["bee"])
    rename(model(tmp_path / "m"), "emmet", "bee", merge=True)
    merged = Teacher(tmp_path / "m", [tmp_path / "one"], TeachingOptions(device="cpu"))
    assert {group.name: group.accuracy_when_taught for group in merged.evaluate().classes} == {
        "bee": None,
        "cat": was["cat"],
    }


def test_learned_folder_is_skipped_unless_again(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "one", "ant", "bee")
    teach(tmp_path / "m", folder)
    before = learner_snapshot(model(tmp_path / "m").learner)
    _, (result,) = teach(tmp_path / "m", folder)
    assert not result.learned
    assert "already learned" in result.skip_reason
    assert not differing_keys(before, learner_snapshot(model(tmp_path / "m").learner))
    _, (result,) = teach(tmp_path / "m", folder, again=True)
    assert result.learned
    write_images(folder, "ant", each=3, seed=7)
    _, (result,) = teach(tmp_path / "m", folder)
    assert result.learned


def test_training_images_of_a_small_class_never_become_test_images(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "day", "ant", each=3)
    write_images(folder, "bee", each=5)
    learned = files(teach(tmp_path / "m", folder)[0].lessons[0].files.train)
    teacher, held_out = teach_grown_folder(tmp_path / "m", folder, 6, learned)
    assert len(held_out & set(folder.glob("ant/7*"))) == 3  # a third of nine, all of them new
    again, (result,) = teach(tmp_path / "m", folder)
    assert (result.learned, again.lessons[0].files.test) == (False, teacher.lessons[0].files.test)
    assert again.evaluate() == teacher.evaluate()
    forget(model(tmp_path / "m"), classes=["ant"])
    assert all("ant" not in entry.get("beyond", {}) for entry in model(tmp_path / "m").history)


def test_model_folder_can_be_inside_the_image_folder(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "photographs", "ant", "bee")
    for day, again in (("first", False), ("second", True)):
        with lock(folder / "model"):
            _, (result,) = teach(folder / "model", folder, again=again)
        assert result.train_counts.keys() == {"ant", "bee"}, day
        assert "a model folder, not a class" in str(result.skipped[0])


@pytest.mark.parametrize("words", [("", "one"), ("m", "")])
def test_empty_path_is_not_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, str]
) -> None:
    write_images(tmp_path / "one", "ant")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="name is empty"):
        Teacher(words[0], [words[1]], TINY_OPTIONS)


# ---------------------------------------------------------------------------------------------------- memory, settings


def test_memory_grows_to_hold_all_classes(tmp_path: Path) -> None:
    teach(tmp_path / "m", write_images(tmp_path / "one", "ant", "bee"), buffer=2)
    _, (result,) = teach(tmp_path / "m", write_images(tmp_path / "two", "cat", "dog", "eel"))
    assert result.memory_growth == (2, 5)
    assert result.dropped_classes == []
    _, (result,) = teach(tmp_path / "m", write_images(tmp_path / "three", "fox"), buffer=30)
    assert result.memory_growth is None  # the user asked for it
    memory = model(tmp_path / "m").learner.memory
    assert memory.size == 30
    assert len(memory) > 5


def test_resized_memory_does_not_grow_back(tmp_path: Path) -> None:
    teach(tmp_path / "m", write_images(tmp_path / "one", "ant", "bee"), buffer=None)  # ten images of each class
    resized = model(tmp_path / "m")
    resize(resized, 4)
    _, (result,) = teach(tmp_path / "m", write_images(tmp_path / "two", "cat"))
    assert result.memory_growth is None
    assert model(tmp_path / "m").learner.memory.size == 4


def test_classes_dropped_from_a_fixed_memory_are_reported(tmp_path: Path) -> None:
    settings = {**IMAGE_SETTINGS, "memory.outgrown": "drop"}
    teach(tmp_path / "m", write_images(tmp_path / "one", "ant", "bee"), buffer=2, settings=settings)
    _, (result,) = teach(tmp_path / "m", write_images(tmp_path / "two", "cat"), settings={})
    assert len(result.dropped_classes) == 1
    assert result.dropped_classes[0] in ("ant", "bee", "cat")


def test_later_lessons_keep_the_users_settings(tmp_path: Path) -> None:
    teach(tmp_path / "m", write_images(tmp_path / "one", "ant"))
    teach(tmp_path / "m", write_images(tmp_path / "two", "bee"), settings={"tangent.epochs": 3})
    teach(tmp_path / "m", write_images(tmp_path / "three", "cat"), settings={})
    settings = model(tmp_path / "m").learner.settings
    assert settings.specialist.epochs == IMAGE_SETTINGS["specialist.epochs"]
    assert settings.tangent.epochs == 3


def test_options_that_contradict_the_model_are_refused(tmp_path: Path) -> None:
    teach(tmp_path / "m", write_images(tmp_path / "one", "ant"))
    two = write_images(tmp_path / "two", "bee")
    before = (tmp_path / "m" / "CURRENT").read_text()
    for line, changes in {
        "created with --size 8, not 16": {"size": 16},
        "created with --method itl, not er": {"method": "er"},
        "created with --seed 0, not 1": {"seed": 1},
        "was created with --no-flip; omit the option": {"flip": True},
        "a memory of 12 images; --buffer can only make it larger": {"buffer": 3},
        "was created with net.width=4, which cannot be changed": {"settings": {"net.width": 8}},
        "already has weights": {"weights": __file__},
    }.items():
        with pytest.raises(UserError, match=line):
            teach(tmp_path / "m", two, **changes)
    assert (tmp_path / "m" / "CURRENT").read_text() == before


def test_model_folder_is_refused_as_image_folder(tmp_path: Path) -> None:
    teach(tmp_path / "m", write_images(tmp_path / "one", "ant", "bee"))
    with pytest.raises(UserError, match="m is a model folder; give folders of images"):
        teach(tmp_path / "other", tmp_path / "m")
    assert not (tmp_path / "other").exists()


def test_model_is_not_created_in_a_folder_with_other_files(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "one", "ant")
    with pytest.raises(
        UserError, match=r"one is not a model folder and not empty \(ant\); give the model folder first"
    ):
        teach(folder, folder)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="is a file; a model is a folder"):
        teach(tmp_path / "file", folder)
    assert [path.name for path in folder.iterdir()] == ["ant"]


def test_training_starts_from_given_weights(tmp_path: Path) -> None:
    net = nets.build("resnet8", 9, width=4, generator=torch.Generator().manual_seed(5))
    save_file(net.state_dict(), tmp_path / "w.safetensors")
    first: list[torch.Tensor] = []

    def listen(event: str, learner: Any, stage: str | None, epoch: int) -> None:
        if event == "on_stage_start":
            first.append(learner.net.stem.conv.weight.detach().clone())

    folder = write_images(tmp_path / "one", "ant", "bee")
    teach(tmp_path / "m", folder, weights=tmp_path / "w.safetensors", callback=LambdaCallback(listen))
    assert torch.equal(first[0], net.stem.conv.weight)
    settings = {**IMAGE_SETTINGS, "net.name": "resnet10"}
    with pytest.raises(UserError, match="those of the file's network"):
        teach(tmp_path / "other", folder, weights=tmp_path / "w.safetensors", settings=settings)
    assert not (tmp_path / "other" / "CURRENT").exists()
