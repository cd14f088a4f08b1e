"""A file system that has no locks: a model and a sweep say so in a line, a single run goes on without."""

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


@pytest.fixture(autouse=True)
def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(handle: int, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)


def handles() -> list[str]:
    """What this process has open."""
    return sorted(os.listdir("/proc/self/fd"))


def test_a_model_is_not_changed_without_its_lock(tmp_path: Path) -> None:
    before = handles()
    with pytest.raises(UserError, match="cannot lock the model folder"), lock(tmp_path / "model"):
        pytest.fail("it was changed")
    assert handles() == before


def test_a_sweep_does_not_begin(tmp_path: Path) -> None:
    before = handles()
    with pytest.raises(UserError, match=r"Cannot lock files in .*: No locks available. Choose another --out"):
        acquire_job_lock(tmp_path, "cell")
    assert handles() == before


def test_a_run_goes_on(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    before = handles()
    with RunFolder(tmp_path).lock():
        (tmp_path / "metrics.jsonl").write_text("")
    assert handles() == before
