"""A sweep: every cell of a grid, once. What is done is skipped, what was cut goes on, what failed is tried again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from itl.experiments.config import Config
from itl.experiments.search.job_locks import claim
from itl.experiments.search.jobs import stream_key
from itl.experiments.search.progress import Board
from itl.experiments.search.sweep_jobs import Cells


class Backend(Protocol):
    """Who does the work: `Local` or `Cluster`."""

    def drain(self, spec: dict[str, Any], board: Board, amount: int, data: str) -> None:
        """Do everything that the source described by `spec` has, at most `amount` at once."""


def board_of(cells: Cells) -> Board:
    """A board that knows what the folder says; one that holds other runs of these names is refused."""
    cells.check()
    board = Board([config.name for config in cells.configs])
    for config in cells.configs:
        if (state := cells.state(config)) is not None:
            board.take({"work": config.name, **state})
    return board


def sweep(cells: Cells, backend: Backend, board: Board, data: str = "data", download: bool = False) -> None:
    """Run the cells that are left. Mistakes that concern all of them are said before any is begun."""
    left = [config for config in cells.configs if config.name not in {entry.name for entry in board.of("done")}]
    if not left:
        return
    _check_streams(left, data, download)
    cells.open()
    for entry in board.of("failed"):
        board.take({"kind": "waits", "work": entry.name})
    backend.drain(cells.spec, board, len(left), data)
    for config in left:  # what another process did meanwhile
        if (state := cells.state(config)) is not None and board.entries[config.name].state == "waits":
            board.take({"work": config.name, **state})


def _check_streams(configs: Sequence[Config], data: str, download: bool) -> None:
    """Every stream is there (fetched where asked to), and can be cut as the cells want it."""
    for config in {stream_key(config): config for config in configs}.values():
        config.load_stream(data, download)


def elsewhere(cells: Cells) -> list[str]:
    """Cells that another process is at work on."""
    out = []
    for config in cells.configs:
        if cells.state(config) is None:
            mine = claim(cells.out, config.name)
            if mine is None:
                out.append(config.name)
            else:
                mine.release()
    return out


def default_place(name: str) -> Path:
    """Where a grid's runs go unless said otherwise."""
    return Path("runs") / name
