from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the server needs itl[serve]")
pytest.importorskip("httpx", reason="starlette's test client needs httpx")

from starlette.testclient import TestClient

from support.server_client import client_for
from support.tiny import TINY
from support.tiny_model import trained_model


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable the cache of decoded images."""
    monkeypatch.setenv("ITL_CACHE", "off")


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_model(tmp_path_factory.mktemp("trained") / "animals", settings=TINY).path


@pytest.fixture
def model(trained: Path, tmp_path: Path) -> Path:
    """A model of cats, dogs, eels and foxes."""
    return Path(shutil.copytree(trained, tmp_path / "animals"))


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    """A client of a server for a new model."""
    with client_for(tmp_path / "new") as opened:
        yield opened
