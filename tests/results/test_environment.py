"""Records contain the hardware, the versions and the commit of their run."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch

from itl.results.environment import cpu_model, environment, git_commit


def git(folder: Path, *arguments: str) -> str:
    """Run git in a folder and return its output."""
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    command = ["git", *identity, *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def test_environment_has_cpu_model_threads_and_commit() -> None:
    found = environment(torch.device("cpu"))
    assert found["hardware"]["threads"] == torch.get_num_threads()
    assert {"device", "cpu", "cpus", "threads"} <= found["hardware"].keys()
    assert "commit" in found


def test_cpu_model_is_read_from_cpuinfo(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nmodel name\t: Another\n")
    assert cpu_model(tmp_path / "cpuinfo") == "Some CPU @ 2 GHz"


def test_commit_is_that_of_the_checkout_and_marks_changes(tmp_path: Path) -> None:
    tracked = tmp_path / "module.py"
    tracked.write_text("a = 1\n")
    assert git_commit(tracked) is None  # not in a checkout
    git(tmp_path, "init", "-q")
    git_commit.cache_clear()
    assert git_commit(tracked) is None  # in a checkout, but not tracked, like an installed copy
    git(tmp_path, "add", "module.py")
    git(tmp_path, "commit", "-qm", "first")
    git_commit.cache_clear()
    head = git(tmp_path, "rev-parse", "HEAD")
    assert git_commit(tracked) == head
    tracked.write_text("a = 2\n")
    git_commit.cache_clear()
    assert git_commit(tracked) == f"{head}-dirty"


def test_commit_outside_a_checkout_is_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    checkout: list[str | None] = [None, "abc"]
    monkeypatch.setitem(environment.__globals__, "git_commit", lambda file: checkout.pop(0))
    monkeypatch.setenv("ITL_COMMIT", "def")
    assert [environment(torch.device("cpu"))["commit"] for _ in range(2)] == ["def", "abc"]
