"""Clients of the server's application, without a network."""

from __future__ import annotations

import io
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
from starlette.testclient import TestClient

from itl.apps.model import lock
from itl.apps.server import ServerOptions, create_app
from itl.apps.server.limits import Limits
from itl.apps.teaching import Teacher
from support.image_folders import IMAGE_SETTINGS
from support.serving import shapes
from support.tiny_lessons import TINY_OPTIONS

TOKEN = "test-token-0123456789"
BASE = "http://127.0.0.1:8484"
LIMITS = Limits(request_bytes=1 << 20, files=20, file_bytes=200_000, zip_bytes=600_000, pixels=250_000, pictures=30)


def client_for(path: Path, token: str | None = TOKEN, **options: Any) -> TestClient:
    """A client of a server for `path`, which sends the token in a header."""
    app = create_app(ServerOptions(path=path, token=TOKEN, device="cpu", limits=LIMITS, **options))
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return TestClient(app, base_url=BASE, headers=headers, raise_server_exceptions=False)


def upload(client: httpx.Client, *files: tuple[str, bytes], name: str = "cat") -> Any:
    """Add files, given by name and content, to the next lesson as pictures of a class; return the response."""
    return client.post("/api/pictures", data={"class": name}, files=[("image", file) for file in files])


def add(client: httpx.Client, kind: str, numbers: range, name: str | None = None) -> Any:
    """Add drawn shapes to the next lesson, as pictures of a class."""
    return upload(client, *shapes(kind, numbers, 16), name=name or kind).json()


def draft(client: httpx.Client) -> dict[str, list[str]]:
    """The pictures of the next lesson by class."""
    return {one["name"]: one["pictures"] for one in client.get("/api/state").json()["draft"]}


def draft_sizes(client: httpx.Client) -> dict[str, int]:
    """The number of pictures of the next lesson by class."""
    return {name: len(pictures) for name, pictures in draft(client).items()}


def teach_draft(client: TestClient, path: Path) -> str:
    """Teach the next lesson in this process, as the worker process does."""
    session = client.app.state.sessions.get()  # type: ignore[attr-defined]
    lesson = str(session.pictures.start_lesson())
    with lock(path):
        new = replace(TINY_OPTIONS, settings=IMAGE_SETTINGS)  # the server is another process
        options = new if not (path / "CURRENT").exists() else type(TINY_OPTIONS)(device="cpu")
        teacher = Teacher(path, [session.pictures.folder / lesson], options)
        for result in teacher.lesson_results():
            teacher.teach(result)
    return lesson


def zipped(client: TestClient, file: str) -> list[str]:
    """Names of the files in an exported archive."""
    return zipfile.ZipFile(io.BytesIO(client.get(f"/api/export/{file}").content)).namelist()
