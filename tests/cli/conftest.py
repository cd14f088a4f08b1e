"""Fixtures for tests of the command line."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.cli_process import ForkServer, Outcome, tiny
from support.command_line import run_in_process

Itl = Callable[..., Outcome]


@pytest.fixture
def itl(fork_server: ForkServer, tmp_path: Path) -> Itl:
    """A function that runs `itl` with the given arguments in a separate process, in an empty folder."""
    return lambda *args, folder=tmp_path: fork_server.run([str(arg) for arg in args], folder)


@pytest.fixture
def quick_itl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Itl:
    """A function that runs `itl` in this process, in an empty folder, for commands that are refused or only print.

    A fork of the server takes several times as long as such a command.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    return lambda *args: run_in_process(*map(str, args))


@pytest.fixture(scope="session")
def finished_run(fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run that saved its specialists. Read-only: tests that change it must copy it."""
    folder = tmp_path_factory.mktemp("finished")
    outcome = fork_server.run(["run", *tiny(), "--keep-specialists", "--out", "run", "--quiet"], folder)
    assert (outcome.code, outcome.out, outcome.err) == (0, "run\n", "")
    return folder / "run"
