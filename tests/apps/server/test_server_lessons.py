"""Lessons that the page teaches: review, corrections, undo, and commands that change the model at the same time."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from starlette.testclient import TestClient

from itl.apps.model import Model, lock
from support.server_client import add, client_for, draft, teach_draft, zipped
from support.serving import png, shape_picture


@pytest.fixture
def taught(tmp_path: Path) -> Any:
    with client_for(tmp_path / "new") as client:
        add(client, "circle", range(12))
        add(client, "square", range(12))
        teach_draft(client, tmp_path / "new")
        yield client


def test_review_follows_corrections_undo_rename_and_forget(taught: TestClient, tmp_path: Path) -> None:
    client, path = taught, tmp_path / "new"
    review = client.get("/api/review").json()
    assert review["images"] == sum(one["images"] for one in review["classes"]) > 0
    assert sum(map(sum, review["confusion"])) == review["images"]
    assert sum(map(len, review["cells"].values())) == review["images"]
    chances = [
        row["confidence"] if row["class"] == row["predicted"] else 1 - row["confidence"] for row in review["uncertain"]
    ]
    assert chances == sorted(chances)  # with two classes, the probability of the true class
    slots = [slot for one in review["classes"] for slot in one["memory"]]
    assert Image.open(io.BytesIO(client.get(f"/api/memory/{slots[0]}").content)).size == (8, 8)

    # A tried picture and a held-out picture go into the next lesson, and out of the review.
    tried = client.post("/api/try", files=[("image", ("t.png", png(shape_picture("cross", 1, 16))))]).json()
    held_out = next(row for row in review["uncertain"] if row["class"])
    for picture in (tried["predictions"][0]["picture"], held_out["picture"]):
        assert client.post("/api/correct", json={"picture": picture, "class": "cross"}).status_code == 200
    assert len(draft(client)["cross"]) == 2
    again = client.get("/api/review").json()
    assert again["images"] == review["images"] - 1
    assert not {row["picture"] for row in again["uncertain"]} & set(draft(client)["cross"])

    # The second lesson, which is undone: its pictures come back.
    add(client, "cross", range(10, 16))
    before = {name: set(pictures) for name, pictures in draft(client).items()}
    teach_draft(client, path)
    assert client.get("/api/model").json()["classes"] == ["circle", "square", "cross"]
    assert client.post("/api/undo", json={}).json() == {"undone": ["learn"]}
    assert client.get("/api/model").json()["classes"] == ["circle", "square"]
    assert {name: set(pictures) for name, pictures in draft(client).items()} == before

    client.post("/api/rename", json={"old": "circle", "new": "disc"})
    renamed = client.get("/api/review").json()
    assert [one["name"] for one in renamed["classes"]] == ["disc", "square"]
    assert renamed["classes"][0]["was"] is not None
    assert len(client.get("/api/export/predictions.csv").text.splitlines()) == 1 + again["images"]
    names = zipfile.ZipFile(io.BytesIO(client.get("/api/export/pictures.zip").content)).namelist()
    assert {name.split("/")[0] for name in names} == {"circle", "square", "cross"}

    # Forgetting a class deletes its pictures, under the name it had when it was taught.
    stored = set((path / "pictures" / "files").iterdir())
    assert client.post("/api/forget", json={"class": "disc"}).status_code == 200
    lost = stored - set((path / "pictures" / "files").iterdir())
    assert len(lost) >= 11
    assert {name.split("/")[0] for name in zipped(client, "pictures.zip")} == {"square", "cross"}
    assert {name.split("/")[0] for name in zipped(client, "memory.zip")} == {"square"}


def test_trained_pictures_are_never_held_out_later(taught: TestClient, tmp_path: Path) -> None:
    """Pictures of the first lesson are added again under another class."""
    for kind in ("circle", "square"):
        add(taught, kind, range(12), name="shape")
    session = taught.app.state.sessions.get()  # type: ignore[attr-defined]
    first = session.pictures.read("lesson-0001")
    trained = {file for files in first.train.values() for file in files}
    second = session.pictures.read(session.pictures.start_lesson())
    assert not trained & {file for files in second.test.values() for file in files}
    first = session.pictures.read("lesson-0001")
    learned = {file for files in second.train.values() for file in files}
    assert not learned & {file for files in first.test.values() for file in files}


def test_page_is_refused_while_a_command_changes_the_model(taught: TestClient, tmp_path: Path) -> None:
    with lock(tmp_path / "new"):
        answer = taught.post("/api/rename", json={"old": "circle", "new": "disc"})
    assert answer.status_code == 400
    assert "is being changed by" in answer.json()["error"]


def test_unfinished_lesson_of_a_command_is_not_discarded(taught: TestClient, tmp_path: Path) -> None:
    path = tmp_path / "new"
    model = Model.open(path, device="cpu")
    model.pending = {"fingerprint": "of other images", "folder": "../elsewhere"}
    model.save()
    add(taught, "cross", range(4))
    session = taught.app.state.sessions.get()  # type: ignore[attr-defined]
    lesson = session.pictures.start_lesson()
    assert taught.post("/api/lesson/discard", json={}).status_code == 200
    assert Model.open(path, device="cpu").pending == model.pending
    assert (len(draft(taught)["cross"]), session.unfinished(), lesson) == (4, None, "lesson-0002")
