from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.cli_process import Nursery, Outcome, tiny

Itl = Callable[..., Outcome]


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.fixture
def itl(nursery: Nursery, tmp_path: Path) -> Itl:
    """Runs `itl` with the given arguments in its own process, in an empty folder."""
    return lambda *args, folder=tmp_path: nursery.run([str(a) for a in args], folder)


@pytest.fixture(scope="session")
def kept(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run that saved its specialists. Read-only: tests that change it must copy it."""
    folder = tmp_path_factory.mktemp("kept")
    done = nursery.run(["run", *tiny(), "--keep-specialists", "--out", "run", "--quiet"], folder)
    assert (done.code, done.out, done.err) == (0, "run\n", "")
    return folder / "run"
