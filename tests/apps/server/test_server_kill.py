"""A server that is killed during a lesson, and a concurrent command: one writer at a time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.server_client import add
from support.serving import Served, shapes

pytestmark = pytest.mark.slow
LONG = {"specialist.epochs": 1_000_000, "tangent.epochs": 5, "projection.epochs": 5}


def wait_for(condition: Callable[[], Any], seconds: float = 240) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.1)
    raise TimeoutError("the condition did not become true")


def is_idle(client: httpx.Client) -> bool:
    return not client.get("/api/state").json()["busy"]


def test_lesson_of_a_killed_server_can_be_continued_and_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ITL_SAVE_EVERY", "0.1")
    path = tmp_path / "model"
    served = Served(path, settings={"specialist.epochs": 2, "tangent.epochs": 2, "projection.epochs": 2})
    with served.client() as client:
        for kind in ("circle", "square"):
            add(client, kind, range(10))
        assert client.post("/api/lesson", json={}).status_code == 202
        wait_for(lambda: is_idle(client))
        complete = client.get("/api/model").json()
        before = client.post("/api/predict", files=[("image", shapes("circle", [77], 16)[0])]).json()
        add(client, "cross", range(10))
    served.close()
    # The next lesson must take long. A model keeps the settings that the user chose, so its saved state is changed.
    subprocess.run([sys.executable, "-c", CHANGE_EPOCHS, str(path)], check=True)

    served = Served(path)
    with served.client() as client:
        assert client.post("/api/lesson", json={}).status_code == 202
        wait_for(lambda: (path / "LOCK.json").exists() and client.get("/api/state").json()["job"]["done"] > 3)
        generations = set(path.glob("generation-*"))
        wait_for(lambda: set(path.glob("generation-*")) - generations)  # an unfinished state is saved
        folder = tmp_path / "more"
        for kind in ("circle", "square"):
            (folder / kind).mkdir(parents=True)
            for name, data in shapes(kind, range(20, 24), 16):
                (folder / kind / name).write_bytes(data)
        command = subprocess.run(
            [sys.executable, "-m", "itl", "learn", str(path), str(folder)], capture_output=True, text=True
        )
        assert command.returncode == 2
        assert "is being changed by process" in command.stderr
        # While a lesson is being taught, the last complete state answers.
        during = client.post("/api/predict", files=[("image", shapes("circle", [77], 16)[0])]).json()
        assert during == before
        worker = json.loads((path / "LOCK.json").read_text())["pid"]
    served.kill()
    wait_for(lambda: not _is_alive(worker))  # until then it holds the lock

    served = Served(path)
    with served.client() as client:
        state = client.get("/api/state").json()
        assert state["unfinished"] == "lesson-0002"
        assert state["model"]["classes"] == complete["classes"]
        after = client.post("/api/predict", files=[("image", shapes("circle", [77], 16)[0])]).json()
        assert after == before
        assert wait_for(lambda: client.post("/api/lesson/continue", json={}).status_code == 202)
        wait_for(lambda: client.get("/api/state").json()["job"]["done"] > 3)
        client.post("/api/lesson/cancel", json={})
        wait_for(lambda: is_idle(client))
        state = client.get("/api/state").json()
        assert state["job"]["state"] == "cancelled", state["job"]
        assert state["unfinished"] is None
        assert {one["name"]: len(one["pictures"]) for one in state["draft"]} == {"cross": 10}
        assert state["model"]["history"] == complete["history"]
    served.close()


CHANGE_EPOCHS = f"""
import sys
from itl.apps.model import Model
from itl.apps.teaching.default_settings import USER_SETTINGS_NOTE
model = Model.open(sys.argv[1], device="cpu")
model.learner.notes[USER_SETTINGS_NOTE].update({LONG!r})
model.save()
"""


def test_killed_server_leaves_no_worker_process(tmp_path: Path) -> None:
    served = Served(tmp_path / "model", settings=LONG)
    with served.client() as client:
        for kind in ("circle", "square"):
            add(client, kind, range(10))
        client.post("/api/lesson", json={})
        holder = tmp_path / "model" / "LOCK.json"
        wait_for(holder.exists)
        worker = json.loads(holder.read_text())["pid"]
        assert worker != served.process.pid
    served.kill()
    wait_for(lambda: not _is_alive(worker))


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
