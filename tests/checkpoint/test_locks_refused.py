"""File systems without locks: a model and a sweep are refused with one line, a single run continues unlocked."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from itl.checkpoint.lock import lock
from itl.errors import UserError
from itl.experiments.search.job_locks import acquire_job_lock
from itl.results import RunFolder


@pytest.fixture(autouse=True, params=["ENOLCK", "ENOSYS", "EOPNOTSUPP"])
def reason(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make every lock fail, and return the operating system's message."""
    number: int = getattr(errno, request.param)

    def refuse(handle: int, how: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    return os.strerror(number)


def open_handles() -> list[str]:
    """File descriptors that this process has open."""
    return sorted(os.listdir("/proc/self/fd"))


def test_model_folder_without_locks_is_refused(tmp_path: Path, reason: str) -> None:
    before = open_handles()
    with pytest.raises(UserError, match=f"cannot lock the model folder .*: {reason}"), lock(tmp_path / "model"):
        pytest.fail("the folder was used without a lock")
    assert open_handles() == before


@pytest.mark.parametrize("wait", [False, True])
def test_sweep_without_locks_is_refused(tmp_path: Path, reason: str, wait: bool) -> None:
    before = open_handles()
    with pytest.raises(UserError, match=rf"Cannot lock files in .*: {reason}. Choose another --out"):
        acquire_job_lock(tmp_path, "cell", wait)
    assert open_handles() == before


def test_run_without_locks_continues(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    before = open_handles()
    with RunFolder(tmp_path).lock():
        (tmp_path / "metrics.jsonl").write_text("")
    assert open_handles() == before
