"""Untrusted folders, malformed numbers and a full disk: the server refuses in one line and stays usable."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from itl import UserError
from itl.apps.server import added_pictures as pictures_module
from itl.apps.server import worker
from itl.apps.server.added_pictures import PictureStore
from itl.apps.server.lessons import LessonRunner
from itl.apps.server.limits import Limits
from itl.apps.server.offered_models import Session, Sessions
from itl.apps.server.responses import SafeJSONResponse
from support.server_client import add, client_for, draft


def test_links_in_the_folder_of_pictures_are_refused(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    (photos / "holiday.jpg").write_bytes(b"mine")
    for name in ("pictures", "pictures/files", "pictures/draft"):
        model = tmp_path / name.replace("/", "-")
        (model / name).parent.mkdir(parents=True)
        (model / name).symlink_to(photos)
        with pytest.raises(UserError, match="is a link"):
            PictureStore(model / "pictures", Limits())
        with client_for(model) as client:
            assert client.get("/api/state").status_code == 400
    assert os.listdir(photos) == ["holiday.jpg"]


def test_only_own_files_are_removed_and_no_link_is_read(tmp_path: Path) -> None:
    store = PictureStore(tmp_path / "pictures", Limits())
    files = store.folder / "files"
    files.mkdir(parents=True)
    (files / "holiday.jpg").touch()
    (files / f"{'0' * 32}.png").touch()
    (files / f"{'1' * 32}.png").symlink_to("/etc/passwd")
    os.mkfifo(files / f"{'2' * 32}.png")
    assert store.path("0" * 32) is not None
    assert store.path("1" * 32) is store.path("2" * 32) is None
    store.remove_unused()
    assert os.listdir(files) == ["holiday.jpg"]


def test_names_that_are_not_text_are_skipped_or_escaped(tmp_path: Path) -> None:
    for name in ("fine", "\udcff", "a\nb"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "CURRENT").touch()
    assert Sessions(tmp_path, "cpu", Limits(), several=True).names() == ["fine"]
    assert json.loads(bytes(SafeJSONResponse({"error": "\udcff \u00e9"}).body)) == {"error": "\udcff \u00e9"}


def test_numbers_that_json_does_not_have_are_sent_as_null() -> None:
    answer = SafeJSONResponse({"a": [float("nan"), (float("inf"), 1.5)]})
    assert json.loads(bytes(answer.body)) == {"a": [None, [None, 1.5]]}


@pytest.mark.parametrize("content", ["[" * 100_000, "9" * 5000, "{}", '["x"]', b"\xff"])
def test_damaged_list_of_tried_pictures_is_empty(tmp_path: Path, content: str | bytes) -> None:
    (tmp_path / "tried.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    assert PictureStore(tmp_path, Limits()).tried() == []


def test_malformed_numbers_cause_no_server_error(tmp_path: Path) -> None:
    with client_for(tmp_path / "new") as client:
        add(client, "circle", range(1))
        picture = draft(client)["circle"][0]
        for side in ("²", "٣", "9" * 5000, "-1", "", "0"):
            assert client.get(f"/api/pictures/{picture}", params={"side": side}).status_code == 200
        for slot in ("²", "٣", "9" * 5000, "-1"):
            assert client.get(f"/api/memory/{slot}").status_code == 404
        for length in (b"9" * 5000, b"\xb2", b"-1", b""):
            assert client.post("/api/predict", content=b"x", headers={"Content-Length": length}).status_code == 413


def test_full_disk_is_reported_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    store = PictureStore(tmp_path / "pictures", Limits())
    monkeypatch.setattr(pictures_module, "write_text_atomic", fail)
    with pytest.raises(UserError, match="No space left"):
        store.set_tried([])


@pytest.mark.parametrize(("code", "status"), [(errno.ENOSPC, 507), (errno.EIO, 500)])
def test_download_that_does_not_fit_on_the_disk_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, status: int
) -> None:
    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    monkeypatch.setattr("zipfile.ZipFile.writestr", fail)
    with client_for(tmp_path / "m") as client:
        add(client, "circle", range(1))
        answer = client.get("/api/export/pictures.zip")
    assert answer.status_code == status
    assert ("no space left" in answer.json()["error"]) == (status == 507)
    assert not list((tmp_path / "temporary").iterdir())


def test_failure_after_a_lesson_does_not_block_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    runner, session = LessonRunner("cpu", {}), Session(tmp_path / "m", "cpu", Limits())
    runner._session, runner._lesson, runner.job = session, "lesson-0001", {}
    runner._idle.clear()
    monkeypatch.setattr(session.pictures, "finish_lesson", fail)
    runner._end({"event": "done", "result": {}})
    assert not runner.running
    assert runner.job["state"] == "failed"
    assert "No space left" in capfd.readouterr().err


def test_output_of_a_network_is_not_sent_as_an_event(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(worker, "_events", None)
    stdout = os.dup(1)
    try:
        worker._keep_stdout_for_events()
        os.write(1, b"hello\n")
        worker.send(event="x")
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)
    assert capfd.readouterr() == ('{"event": "x"}\n', "hello\n")
