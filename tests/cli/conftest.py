"""Fixtures for tests of the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from support.cli_process import ForkServer, Outcome, tiny

Itl = Callable[..., Outcome]


@pytest.fixture
def itl(fork_server: ForkServer, tmp_path: Path) -> Itl:
    """A function that runs `itl` with the given arguments in a separate process, in an empty folder."""
    return lambda *args, folder=tmp_path: fork_server.run([str(arg) for arg in args], folder)


@pytest.fixture(scope="session")
def finished_run(fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run that saved its specialists. Read-only: tests that change it must copy it."""
    folder = tmp_path_factory.mktemp("finished")
    outcome = fork_server.run(["run", *tiny(), "--keep-specialists", "--out", "run", "--quiet"], folder)
    assert (outcome.code, outcome.out, outcome.err) == (0, "run\n", "")
    return folder / "run"
