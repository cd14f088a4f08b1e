"""The server's interface: predictions, pictures of the next lesson, exports and several models."""

from __future__ import annotations

import asyncio
import io
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from itl import nets
from itl.apps.images import scan_folder
from itl.apps.images.picture_list import LIST_FILE
from itl.apps.model import Model
from itl.apps.model.calibration import Calibration
from itl.apps.model.memory_images import MemoryImageFiles
from itl.apps.server.backbones import AUTOMATIC, SCRATCH, backbone_choices, new_model_options
from itl.apps.server.batched_prediction import Predictor
from itl.apps.server.offered_models import Sessions
from itl.apps.teaching import TeachingOptions, options
from itl.errors import UserError
from support.server_client import LIMITS, add, client_for, draft, draft_sizes, zipped
from support.serving import png, shapes
from support.tiny_model import tiny_task


def pixels_as_files(*classes: str, seed: int = 0) -> tuple[list[tuple[str, bytes]], list[str]]:
    """Picture files of the tiny task, and their classes."""
    pixels, labels = tiny_task(*classes, seed=seed)
    images = [Image.fromarray(one.numpy().transpose(1, 2, 0)) for one in pixels]
    return [(f"{k}.png", png(image)) for k, image in enumerate(images)], labels


# --------------------------------------------------------------------------------------------------------- predictions


def test_predictions_equal_those_of_the_model(model: Path) -> None:
    files, _ = pixels_as_files("cat", "dog", "eel", "fox")
    expected = Model.open(model, device="cpu").predict_proba(tiny_task("cat", "dog", "eel", "fox")[0])
    with client_for(model) as client:
        answer = client.post("/api/predict", files=[("image", file) for file in files[:20]]).json()
        one = client.post("/api/predict", content=files[0][1], headers={"Content-Type": "image/png"}).json()
        classes = client.get("/api/model").json()["classes"]
    assert [row["name"] for row in answer["predictions"]] == [name for name, _ in files[:20]]
    for row, probabilities in zip(answer["predictions"], expected, strict=False):
        assert row["class"] == classes[probabilities.argmax()]
        np.testing.assert_allclose(row["confidence"], probabilities.max(), atol=1e-5)
        np.testing.assert_allclose(sum(top["confidence"] for top in row["top"]), 1, atol=1e-5)
        assert row["unknown"] is False
    assert one["predictions"][0]["top"] == answer["predictions"][0]["top"]
    assert not (model / "pictures").exists()  # a prediction stores nothing


def test_unreadable_images_are_listed(model: Path) -> None:
    good = pixels_as_files("cat")[0][0]
    with client_for(model) as client:
        answer = client.post("/api/predict", files=[("image", good), ("image", ("bad.png", b"no image"))]).json()
        assert len(answer["predictions"]) == 1
        assert answer["problems"][0]["name"] == "bad.png"
        assert client.post("/api/predict", files=[("image", ("bad.png", b"no image"))]).status_code == 400
        assert client.post("/api/predict").status_code == 400


def test_concurrent_requests_share_forward_passes(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    original = Model.classify
    monkeypatch.setattr(Model, "classify", lambda self, x: (sizes.append(len(x)), original(self, x))[1])
    files, _ = pixels_as_files("cat", "dog", "eel", "fox")

    async def ask() -> list[dict[str, Any]]:
        predictor = Predictor(model, "cpu", LIMITS)
        answers = await asyncio.gather(*(predictor.predict(data) for _, data in files))
        predictor.close()
        return list(answers)

    answers = asyncio.run(ask())
    assert sum(sizes) == len(files)
    assert len(sizes) < len(files)
    opened = Model.open(model, device="cpu")
    expected = original(opened, tiny_task("cat", "dog", "eel", "fox")[0])
    assert [one["class"] for one in answers] == expected.labels.tolist()


def test_new_state_is_used_after_another_process_has_saved(model: Path) -> None:
    with client_for(model) as client:
        assert client.get("/api/model").json()["classes"][0] == "cat"
        other = Model.open(model, device="cpu")
        other.output_names[0] = "tiger"
        other.save()
        assert client.get("/api/model").json()["classes"][0] == "tiger"


def test_memory_is_read_when_its_pictures_are_shown(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = Model.open(model, device="cpu").learner.memory.pixels.numpy()
    monkeypatch.setattr(MemoryImageFiles, "read_memory", None)  # a prediction needs no picture of the memory
    with client_for(model) as client:
        assert client.post("/api/predict", files=[("image", pixels_as_files("cat")[0][0])]).status_code == 200
        shown = Image.open(io.BytesIO(client.get("/api/memory/3").content))
        np.testing.assert_array_equal(np.asarray(shown).transpose(2, 0, 1), expected[3])
        for file in model.glob("generation-*/memory/*/*.png"):  # also its copies in earlier states
            if np.array_equal(np.asarray(Image.open(file)), np.asarray(shown)):
                file.unlink()
        assert client.get("/api/memory/3").status_code == 404
        assert len(zipped(client, "memory.zip")) == len(expected) - 2  # without the lost picture and the unused slot


def test_read_only_offers_predictions_only(model: Path) -> None:
    with client_for(model, read_only=True) as client, client_for(model, read_only=True):  # two at once are no problem
        assert client.get("/api/model").json()["ready"]
        assert client.post("/api/predict", files=[("image", pixels_as_files("cat")[0][0])]).status_code == 200
        for path in ("undo", "rename", "forget", "lesson", "pictures", "correct", "try", "models"):
            assert client.post(f"/api/{path}", json={}).status_code in (404, 405)
        assert client.get("/api/export/memory.zip").status_code == 404
        assert client.get("/api/memory/0").status_code == 404


def test_openapi_document_describes_the_answers(model: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    with client_for(model) as client:
        document = client.get("/api/openapi.json").json()
        answers = {
            "/api/model": client.get("/api/model"),
            "/api/models": client.get("/api/models"),
            "/api/predict": client.post("/api/predict", files=[("image", pixels_as_files("cat")[0][0])]),
        }
        refused = client.post("/api/predict")
    assert set(document["paths"]) == set(answers)
    for path, answer in answers.items():
        (operation,) = document["paths"][path].values()
        schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
        jsonschema.validate(answer.json(), {**schema, "components": document["components"]})
    jsonschema.validate(refused.json(), document["components"]["schemas"]["Error"])


def test_unknown_images_are_those_of_the_calibrated_model(model: Path, tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path / "m")
    changed = Model.open(tmp_path / "m", device="cpu")
    pixels = tiny_task("cat", "dog", "eel", "fox")[0][:20]
    threshold = float(np.sort(changed.predict_proba(pixels).max(1))[5])
    changed.calibration = Calibration(threshold=threshold, images=40)
    changed.save()
    files, _ = pixels_as_files("cat", "dog", "eel", "fox")
    with client_for(tmp_path / "m") as client:
        rows = client.post("/api/predict", files=[("image", file) for file in files[:20]]).json()["predictions"]
        rule = client.get("/api/model").json()["unknown_rule"]
    assert [row["unknown"] for row in rows] == changed.classify(pixels).unknown.tolist()
    assert sum(row["unknown"] for row in rows) == 5
    assert f"{threshold:.1%}" in rule


# ----------------------------------------------------------------------------------------- pictures of the next lesson


def test_pictures_are_added_moved_and_removed(client: TestClient) -> None:
    assert add(client, "circle", range(3)) == {"added": 3, "problems": []}
    assert add(client, "circle", range(1))["added"] == 1  # the same picture again
    add(client, "square", range(2))
    first, second, third = draft(client)["circle"]
    client.post("/api/pictures/move", json={"pictures": [first], "class": "square"})
    client.post("/api/pictures/remove", json={"pictures": [second]})
    assert draft(client)["circle"] == [third]
    assert first in draft(client)["square"]
    client.post("/api/classes/rename", json={"old": "circle", "new": "disc"})
    client.post("/api/classes/remove", json={"name": "square"})
    assert draft(client) == {"disc": [third]}


def test_zip_folders_are_classes(client: TestClient) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for kind in ("circle", "square"):
            for name, data in shapes(kind, range(3), 16):
                archive.writestr(f"shapes/{kind}/{name}", data)
        archive.writestr("shapes/square/notes.txt", "no picture")
        archive.writestr("__MACOSX/x.png", "")
    answer = client.post("/api/pictures", files=[("image", ("shapes.zip", out.getvalue()))]).json()
    assert answer["added"] == 6
    assert [problem["name"] for problem in answer["problems"]] == ["notes.txt"]
    assert draft_sizes(client) == {"circle": 3, "square": 3}


def test_large_pictures_are_reduced_and_turned_upright(client: TestClient) -> None:
    image = Image.new("RGB", (640, 380), "red")
    image.paste("blue", (0, 0, 320, 380))
    out = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6  # to be rotated by 90 degrees
    image.resize((520 * 640 // 380, 520)).crop((0, 0, 470, 520)).save(out, format="JPEG", exif=exif)
    client.post("/api/pictures", data={"class": "x"}, files=[("image", ("a.jpg", out.getvalue()))])
    (picture,) = draft(client)["x"]
    small = Image.open(io.BytesIO(client.get(f"/api/pictures/{picture}", params={"side": "100"}).content))
    assert max(small.size) == 100
    assert small.width > small.height


def test_list_of_a_lesson_is_read_like_an_image_folder(client: TestClient, tmp_path: Path) -> None:
    add(client, "circle", range(12))
    add(client, "square", range(12))
    session = client.app.state.sessions.get()  # type: ignore[attr-defined]
    folder = scan_folder(session.pictures.folder / session.pictures.start_lesson())
    assert set(folder.train) == set(folder.test) == {"circle", "square"}
    assert sum(map(len, [*folder.train.values(), *folder.test.values()])) == 24
    assert draft(client) == {}
    (folder.folder / LIST_FILE).write_text('{"format": 1, "train": {"a": ["../../../etc/passwd"]}}')
    with pytest.raises(UserError, match="not a valid list"):
        scan_folder(folder.folder)


def test_lesson_needs_two_classes(client: TestClient) -> None:
    assert client.post("/api/lesson", json={}).status_code == 400
    add(client, "circle", range(4))
    answer = client.post("/api/lesson", json={})
    assert answer.status_code == 400
    assert "two classes" in answer.json()["error"]
    assert len(draft(client)["circle"]) == 4


def test_second_server_of_the_same_folder_is_refused(tmp_path: Path) -> None:
    with client_for(tmp_path / "new"), pytest.raises(UserError, match="already served by process"):
        Sessions(tmp_path / "new", "cpu", LIMITS).lock()


@pytest.mark.parametrize(("served", "second"), [("models", "models/pets"), ("models/pets", "models")])
def test_model_is_not_served_alone_and_with_its_folder(tmp_path: Path, served: str, second: str) -> None:
    (tmp_path / "models" / "pets" / "pictures").mkdir(parents=True)
    with client_for(tmp_path / served), pytest.raises(UserError, match=f"{served} is already served by process"):
        Sessions(tmp_path / second, "cpu", LIMITS).lock()
    Sessions(tmp_path / second, "cpu", LIMITS).lock().release()
    with client_for(tmp_path / "models" / "pets"):  # beside another model of the folder
        Sessions(tmp_path / "models" / "birds", "cpu", LIMITS).lock().release()


# ------------------------------------------------------------------------------------------- changes, exports, networks


def test_merged_classes_become_one(model: Path) -> None:
    with client_for(model) as client:
        assert client.post("/api/rename", json={"old": "cat", "new": "dog"}).status_code == 400
        assert client.post("/api/rename", json={"old": "cat", "new": "dog", "merge": True}).status_code == 200
        assert client.get("/api/model").json()["classes"] == ["dog", "eel", "fox"]


def test_model_can_be_exported_as_onnx(model: Path) -> None:
    onnx = pytest.importorskip("onnx")
    with client_for(model) as client:
        answer = client.get("/api/export/model.onnx")
    assert answer.headers["content-disposition"] == 'attachment; filename="model.onnx"'
    onnx.checker.check_model(onnx.load_from_string(answer.content))


def test_one_server_can_serve_several_models(model: Path, tmp_path: Path) -> None:
    with client_for(tmp_path) as client:
        assert client.get("/api/models").json()["models"] == ["animals"]
        assert client.post("/api/models", json={"name": "plants"}).status_code == 201
        assert client.post("/api/models", json={"name": "plants"}).status_code == 400
        client.post(
            "/api/pictures",
            params={"model": "plants"},
            data={"class": "rose"},
            files=[("image", shapes("circle", [1])[0])],
        )
        assert client.get("/api/state", params={"model": "plants"}).json()["draft"][0]["name"] == "rose"
        assert client.get("/api/state", params={"model": "animals"}).json()["draft"] == []
        assert (tmp_path / "plants" / "pictures" / "files").is_dir()


def test_new_model_offers_the_available_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nets, "weights_available", lambda name: name == "efficientnet-lite0")
    monkeypatch.setattr(options, "weights_available", lambda name: True)
    values = [one["value"] for one in backbone_choices({})]
    assert values == [AUTOMATIC, "efficientnet-lite0", SCRATCH]
    chosen = [TeachingOptions(**new_model_options(value, {})).with_default_backbone(200).backbone for value in values]
    assert chosen == ["efficientnet-lite0", "efficientnet-lite0", None]
    with pytest.raises(UserError, match="Unknown network"):
        new_model_options("../x", {})
    assert backbone_choices({"settings": {"net.name": "resnet8"}}) == []  # the command line has chosen
    monkeypatch.setattr(nets, "weights_available", lambda name: False)
    assert backbone_choices({}) == []
