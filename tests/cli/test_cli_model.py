"""The commands for models of one's own images: info, predict, eval, export, undo, forget, rename, resize."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image
from test_cli_errors import assert_user_error

from itl.apps.images import SortedCopies, read_image
from itl.apps.model import Model
from itl.apps.model.calibration import Calibration
from itl.checkpoint.lock import lock
from itl.cli.app import cli
from itl.learner import Learner
from support.cli_process import Outcome
from support.image_folders import IMAGE_SETTINGS
from support.tiny import TINY, tiny_images
from support.tiny_model import NAMES, tiny_task, trained_model

Itl = Callable[..., Outcome]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model `m` and a folder `pictures` of images that the model has not learned."""
    root = tmp_path_factory.mktemp("made")
    trained_model(root / "m", settings=TINY)
    pixels, labels = tiny_task(*NAMES, each=6, seed=1)
    for k, (image, name) in enumerate(zip(pixels.numpy(), labels, strict=True)):
        (root / "pictures" / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.transpose(1, 2, 0)).save(root / "pictures" / name / f"{k}.png")
    return root


@pytest.fixture
def workspace(prepared: Path, tmp_path: Path) -> Path:
    """A copy that tests may change; the commands run in it."""
    return Path(shutil.copytree(prepared, tmp_path, dirs_exist_ok=True))


def test_predict_json_equals_the_models_probabilities(quick_itl: Itl, workspace: Path) -> None:
    done = quick_itl("predict", "m", "pictures", "--json", "--top", "2")
    assert done.code == 0, done.err
    model = Model.open(workspace / "m", device="cpu")
    assert len(done.json["predictions"]) == 24
    for row in done.json["predictions"]:
        pixels = torch.from_numpy(read_image(workspace / row["path"], 8))
        expected = model.predict_proba(pixels[None])[0]
        best = np.argsort(-expected)[:2]
        assert [likely["class"] for likely in row["top"]] == [model.classes[k] for k in best]
        assert [likely["confidence"] for likely in row["top"]] == pytest.approx(expected[best].tolist(), abs=1e-6)
        assert (row["class"], row["confidence"]) == (row["top"][0]["class"], row["top"][0]["confidence"])
    assert done.json["problems"] == []


def test_predict_prints_lines_and_csv(quick_itl: Itl, workspace: Path) -> None:
    image = next((workspace / "pictures" / "cat").iterdir()).relative_to(workspace)
    lines = quick_itl("predict", "m", image)
    assert lines.out.startswith(str(image))
    assert lines.out.endswith("%\n")
    table = list(
        csv.DictReader(io.StringIO(quick_itl("predict", "m", image, "pictures/dog", "--csv", "--top", "3").out))
    )
    assert len(table) == 7
    columns = [f"{word}_{k}" for k in (1, 2, 3) for word in ("class", "confidence")]
    assert list(table[0]) == ["path", *columns, "unknown"]
    assert f"{100 * float(table[0]['confidence_1']):.1f} %" in lines.out
    heading, row = csv.reader(io.StringIO(quick_itl("predict", "m", image, "--csv", "--top", "9").out))
    assert len(heading) == len(row) == 2 + 2 * len(NAMES)


def test_unknown_images_keep_their_most_likely_class(quick_itl: Itl, workspace: Path) -> None:
    model = Model.open(workspace / "m", device="cpu")
    confidences = [row["confidence"] for row in quick_itl("predict", "m", "pictures", "--json").json["predictions"]]
    model.calibration = Calibration(threshold=float(np.median(confidences)), images=20)
    model.save()
    rows = quick_itl("predict", "m", "pictures", "--json").json["predictions"]
    assert [row["unknown"] for row in rows] == [c < np.median(confidences) for c in confidences]
    assert sum(row["unknown"] for row in rows) == 12
    for row, line in zip(rows, quick_itl("predict", "m", "pictures").out.splitlines(), strict=True):
        assert ("unknown, most likely" in line) == row["unknown"]
        assert row["class"] in line
    table = csv.DictReader(io.StringIO(quick_itl("predict", "m", "pictures", "--csv").out))
    assert [(cell["unknown"], cell["class"]) for cell in table] == [(str(int(r["unknown"])), r["class"]) for r in rows]
    assert "unknown  confidence below" in quick_itl("info", "m").out


def test_eval_shows_rejection_and_never_taught_classes(quick_itl: Itl, workspace: Path) -> None:
    assert "No picture is shown as unknown" in quick_itl("eval", "m", "pictures").out
    model = Model.open(workspace / "m", device="cpu")
    shutil.copytree(workspace / "pictures" / "cat", workspace / "pictures" / "yak")
    predicted = {row["path"]: row for row in quick_itl("predict", "m", "pictures", "--json").json["predictions"]}
    different = np.unique(np.round([row["confidence"] for row in predicted.values()], 4))
    middle = len(different) // 2
    threshold = float(different[middle - 1 : middle + 1].mean())  # between two values: not one, which may be rounded
    model.calibration = Calibration(threshold=threshold, images=20)
    model.save()
    rejection = quick_itl("eval", "m", "pictures", "--json").json["rejection"]
    known = [row for path, row in predicted.items() if Path(path).parent.name != "yak"]
    yaks = [row for path, row in predicted.items() if Path(path).parent.name == "yak"]
    assert rejection["rejected"] == pytest.approx(100 * np.mean([row["confidence"] < threshold for row in known]))
    assert rejection["never_taught"]["images"] == 6
    share = 100 * np.mean([row["confidence"] < threshold for row in yaks])
    assert rejection["never_taught"]["rejected"] == pytest.approx(share)
    right = [row["class"] == Path(row["path"]).parent.name for row in known]
    assert rejection["curve"][0]["accuracy"] == pytest.approx(100 * np.mean(right))
    assert f"of classes never taught: {share:.1f} % of 6 images" in quick_itl("eval", "m", "pictures").out


def test_predict_reads_paths_from_standard_input(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workspace)
    paths = [str(path.relative_to(workspace)) for path in sorted((workspace / "pictures").rglob("*.png"))][:3]
    for words in (["predict", "m", "--json"], ["predict", "m", "-", "--json"]):
        result = CliRunner().invoke(cli, words, input="\n".join([*paths, ""]))
        assert [row["path"] for row in json.loads(result.stdout)["predictions"]] == paths


def test_predict_lists_unreadable_images_and_classifies_the_others(quick_itl: Itl, workspace: Path) -> None:
    (workspace / "pictures" / "cat" / "broken.png").write_bytes(b"no image")
    done = quick_itl("predict", "m", "pictures/cat", "nowhere.png")
    assert done.code == 0
    assert len(done.out.splitlines()) == 6
    assert "broken.png: not an image" in done.err
    assert "nowhere.png: No such file" in done.err
    assert len(quick_itl("predict", "m", "pictures/cat", "--json").json["problems"]) == 1
    only = quick_itl("predict", "m", "nowhere.png")
    assert (only.code, only.out) == (2, "")
    only = quick_itl("predict", "m", "nowhere.png", "--json")
    assert (only.code, only.json["predictions"], len(only.json["problems"])) == (2, [], 1)


def test_eval_agrees_with_predict(quick_itl: Itl, workspace: Path) -> None:
    predicted = {row["path"]: row for row in quick_itl("predict", "m", "pictures", "--json").json["predictions"]}
    done = quick_itl("eval", "m", "pictures", "--json")
    right = [row["class"] == Path(path).parent.name for path, row in predicted.items()]
    assert done.json["images"] == 24
    assert done.json["accuracy"] == pytest.approx(100 * np.mean(right))
    assert np.sum(done.json["confusion"]) == 24
    table = quick_itl("eval", "m", "pictures")
    assert table.code == 0, table.err
    assert f"accuracy {100 * np.mean(right):.1f} % ({sum(right)} of 24 images)" in table.out
    assert "expected calibration error" in table.out
    retrained = done.json["retrained"]
    assert (retrained["images"], retrained["now"]) == (24, pytest.approx(done.json["accuracy"]))
    assert f"together: {retrained['accuracy']:.1f} % (now {retrained['now']:.1f} %)" in table.out


def test_eval_skips_classes_that_were_not_learned(quick_itl: Itl, workspace: Path) -> None:
    shutil.copytree(workspace / "pictures" / "cat", workspace / "pictures" / "yak")
    done = quick_itl("eval", "m", "pictures")
    assert "Not in the accuracy, because the model has not learned them: yak." in done.err
    assert "of 24 images" in done.out
    shutil.copytree(workspace / "pictures" / "yak", workspace / "others" / "yak")
    assert_user_error(quick_itl("eval", "m", "others"), "no images of the classes")


def test_eval_copies_mistakes_by_their_given_class_in_order_of_confidence(quick_itl: Itl, workspace: Path) -> None:
    (workspace / "pictures" / "dog").rename(workspace / "pictures" / "swap")
    (workspace / "pictures" / "cat").rename(workspace / "pictures" / "dog")
    (workspace / "pictures" / "swap").rename(workspace / "pictures" / "cat")
    predicted = {row["path"]: row for row in quick_itl("predict", "m", "pictures", "--json").json["predictions"]}
    mistakes = {path: row for path, row in predicted.items() if row["class"] != Path(path).parent.name}
    before = {path: path.read_bytes() for path in (workspace / "pictures").rglob("*.png")}
    done = quick_itl("eval", "m", "pictures", "--wrong", "fix/these", "--json")
    assert done.json["wrong"] == {"folder": "fix/these", "images": len(mistakes)}
    assert len(mistakes) > 3
    copies = sorted((workspace / "fix" / "these").rglob("*.png"), key=lambda path: path.name)
    expected = sorted(mistakes.values(), key=lambda row: -row["confidence"])
    for rank, (copy, row) in enumerate(zip(copies, expected, strict=True), 1):
        source = Path(row["path"])
        assert copy.name == f"{rank:04d}-{100 * row['confidence']:.0f}-{row['class']}-{source.name}"
        assert copy.parent.name == source.parent.name
        assert copy.read_bytes() == (workspace / source).read_bytes()
    assert {path: path.read_bytes() for path in (workspace / "pictures").rglob("*.png")} == before
    assert_user_error(quick_itl("eval", "m", "pictures", "--wrong", "fix/these"), "is not empty")
    assert_user_error(quick_itl("eval", "m", "pictures", "--wrong", "pictures/wrong"), "is inside pictures")
    assert_user_error(quick_itl("eval", "m", "pictures", "--wrong", "m"), "is a model folder")


def test_eval_without_mistakes_writes_no_folder_and_says_so(quick_itl: Itl, workspace: Path) -> None:
    for row in quick_itl("predict", "m", "pictures", "--json").json["predictions"]:
        folder = workspace / "as predicted" / row["class"]
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(workspace / row["path"], folder / f"{Path(row['path']).parent.name}-{Path(row['path']).name}")
    done = quick_itl("eval", "m", "as predicted", "--wrong", "fix")
    assert "no image was classified wrongly, so fix was not written" in done.out
    assert not (workspace / "fix").exists()


def test_predict_sorts_copies_into_classes_and_overwrites_nothing(quick_itl: Itl, workspace: Path) -> None:
    model = Model.open(workspace / "m", device="cpu")
    rows = quick_itl("predict", "m", "pictures", "--json").json["predictions"]
    model.calibration = Calibration(threshold=float(np.median([row["confidence"] for row in rows])), images=20)
    model.save()
    best = max(rows, key=lambda row: row["confidence"])
    taken = workspace / "sorted" / best["class"] / Path(best["path"]).name
    taken.parent.mkdir(parents=True)
    taken.write_text("mine")
    done = quick_itl("predict", "m", "pictures", "--sort-into", "sorted", "--json")
    for row in done.json["predictions"]:
        copy = workspace / row["copy"]
        assert copy.parent.name == ("unknown" if row["unknown"] else row["class"])
        assert copy.read_bytes() == (workspace / row["path"]).read_bytes()
    assert taken.read_text() == "mine"
    assert len(list((workspace / "sorted").rglob("*.png"))) == 25
    assert "copied 24 images into sorted" in quick_itl("predict", "m", "pictures", "--sort-into", "sorted").out
    assert len(list((workspace / "sorted").rglob("*.png"))) == 49


def test_copies_follow_no_links(quick_itl: Itl, workspace: Path) -> None:
    (workspace / "outside").mkdir()
    (workspace / "link").symlink_to("outside")
    assert_user_error(quick_itl("predict", "m", "pictures", "--sort-into", "link"), "link is a link")
    (workspace / "sorted").mkdir()
    for name in (*NAMES, "unknown"):
        (workspace / "sorted" / name).symlink_to(workspace / "outside")
    assert_user_error(quick_itl("predict", "m", "pictures", "--sort-into", "sorted"), "is a link")
    image = next((workspace / "pictures" / "cat").iterdir())
    copies = SortedCopies(workspace / "files")
    (workspace / "files" / "cat").mkdir(parents=True)
    (workspace / "files" / "cat" / "a.png").symlink_to(workspace / "outside" / "a.png")
    assert copies.add(image, "cat", "a.png").name == "a-2.png"
    assert list((workspace / "outside").iterdir()) == []


def test_copies_are_not_written_into_a_state_of_the_model(quick_itl: Itl, workspace: Path) -> None:
    generation = workspace / "m" / sorted(os.listdir(workspace / "m"))[-1]
    for folder in (generation, generation / "memory", generation / "new"):
        done = quick_itl("predict", "m", "pictures", "--sort-into", folder)
        assert_user_error(done, f"{generation.name} is a state of a model")
    assert sorted(path.name for path in generation.iterdir()) == [
        "SHA256SUMS", "memory", "state.json", "tensors.safetensors",
    ]  # fmt: skip
    assert quick_itl("predict", "m", "pictures", "--sort-into", workspace / "m" / "sorted").code == 0


def test_info_shows_classes_memory_and_history(quick_itl: Itl, workspace: Path) -> None:
    facts = quick_itl("info", "m", "--json").json
    assert facts["memory"]["images"] == facts["memory"]["room"] == 8
    assert facts["memory"]["file_bytes"] == sum(
        path.stat().st_size
        for path in (workspace / "m" / sorted(os.listdir(workspace / "m"))[-1] / "memory").rglob("*.png")
    )
    assert [row["class"] for row in facts["classes"]] == list(NAMES)
    assert [entry["folders"] for entry in facts["history"]] == [["cat", "dog"], ["eel", "fox"]]
    text = quick_itl("info", "m").out
    assert "8 of 8 images" in text
    assert "cat (2)" in text
    assert "learn eel fox" in text


def test_info_of_a_plain_learner_shows_the_size_of_its_pixels(quick_itl: Itl, tmp_path: Path) -> None:
    learner = Learner("er", 8, settings=IMAGE_SETTINGS, device="cpu")
    learner.learn(*tiny_images(classes=2, channels=3))
    learner.save(tmp_path / "plain")
    assert "8 of 8 images, 1.5 KiB (reservoir)" in quick_itl("info", str(tmp_path / "plain")).out  # 8 x 3 x 8 x 8 bytes


def test_undo_rename_merge_resize_and_forget_report_what_they_did(quick_itl: Itl, workspace: Path) -> None:
    assert quick_itl("rename", "m", "cat", "lynx").out == "rename cat to lynx\n"
    assert_user_error(quick_itl("rename", "m", "lynx", "dog"), "add --merge")
    assert quick_itl("rename", "m", "lynx", "dog", "--merge").out == "merge lynx into dog\n"
    assert quick_itl("undo", "m").out == "undone: merge lynx into dog\n"
    assert quick_itl("resize", "m", "4").out.startswith(
        "resize the memory from 8 to 4 images; dropped 1 of lynx, 1 of dog"
    )
    model = Model.open(workspace / "m", device="cpu")
    picture = sorted((workspace / "m" / str(model.generation) / "memory" / "dog").iterdir())[0]
    done = quick_itl("forget", "m", "--image", picture, "--class", "eel")
    assert done.code == 0, done.err
    assert done.out.startswith(
        "deleted: 2 images of the memory and the class eel, and all earlier states of the model\n"
    )
    assert "The weights were trained with these images and have not changed." in done.out
    assert Model.open(workspace / "m", device="cpu").classes == ["lynx", "dog", "fox"]
    assert_user_error(quick_itl("undo", "m"), "no older state")


def test_export_writes_one_file(quick_itl: Itl, workspace: Path) -> None:
    done = quick_itl("export", "m", "--to", "torch", "--out", "m.pt2")
    assert done.out == "wrote m.pt2: uint8 [batch, 3, 8, 8] to probabilities of 4 classes\n"
    pixels = tiny_task("cat")[0]
    program = torch.export.load(workspace / "m.pt2").module()
    np.testing.assert_allclose(
        program(pixels), Model.open(workspace / "m", device="cpu").predict_proba(pixels), atol=1e-6
    )


MISTAKES: dict[str, tuple[list[str], str]] = {
    "no model": (["predict", "nowhere", "a.png"], "not a model folder"),
    "no images": (["predict", "m"], "there are no images"),
    "json and csv": (["predict", "m", "pictures", "--json", "--csv"], "not both"),
    "no folder": (["eval", "m", "nowhere"], "does not exist"),
    "unknown format": (["export", "m", "--to", "onx"], "did you mean 'onnx"),
    "export into a folder": (["export", "m", "--out", "pictures"], "is a folder"),
    "export to a missing folder": (["export", "m", "--to", "torch", "--out", "no/m.pt2"], "cannot write no/m.pt2"),
    "forget nothing": (["forget", "m"], "--image FILE or --class NAME"),
    "forget an unknown class": (["forget", "m", "--class", "cta"], "did you mean 'cat"),
    "forget an unknown image": (["forget", "m", "--image", "pictures/cat/0.png"], "not in the memory of m"),
    "unknown class": (["rename", "m", "cta", "lynx"], "did you mean 'cat"),
    "memory too small": (["resize", "m", "2"], "cannot hold one image of each of 4 classes"),
    "undo without a model": (["undo", "nowhere"], "not a model folder"),
    "info of no model": (["info", "pictures"], "not a model folder"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_model_commands_report_errors_in_one_line(quick_itl: Itl, workspace: Path, case: str) -> None:
    words, message = MISTAKES[case]
    assert_user_error(quick_itl(*words), message)
    assert Model.open(workspace / "m", device="cpu").output_names == list(NAMES)
    assert not (workspace / "nowhere").exists()


def test_a_locked_model_can_be_used_but_not_changed(itl: Itl, workspace: Path) -> None:
    with lock(workspace / "m"):
        assert_user_error(itl("undo", "m"), f"being changed by process {os.getpid()}")
        assert itl("predict", "m", "pictures/cat").code == 0


def test_predictions_ignore_an_unfinished_learn(quick_itl: Itl, workspace: Path) -> None:
    before = quick_itl("predict", "m", "pictures", "--json").json
    model = Model.open(workspace / "m", device="cpu")
    with torch.no_grad():
        model.learner.net.classifier.weight.zero_()
    model.pending = {"what": "photos/yaks", "fingerprint": ""}
    model.save()
    assert quick_itl("predict", "m", "pictures", "--json").json == before
    assert "learning photos/yaks was interrupted" in quick_itl("info", "m").out
    assert quick_itl("undo", "m").code == 0
    assert Model.open(workspace / "m", device="cpu").pending is None
