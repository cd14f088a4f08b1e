"""`itl sweep`: every cell of a grid, on one machine or a cluster."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from itl.errors import UserError

if TYPE_CHECKING:
    from itl.experiments.search.grid import Grid
    from itl.experiments.search.progress import Board
    from itl.experiments.search.sweep import Backend
    from itl.experiments.search.sweep_jobs import Cells


def backend_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of `sweep` and `search` that say who does the work."""
    for option in reversed(
        (
            click.option(
                "--backend",
                type=click.Choice(["local", "ray"]),
                default="local",
                show_default=True,
                help="Processes here, or a Ray cluster.",
            ),
            click.option("--workers", type=click.IntRange(1), metavar="N", help="Processes, or GPUs. [default: all]"),
            click.option(
                "--threads",
                type=click.IntRange(1),
                metavar="N",
                help="Of each process. [default: its share of the cores]",
            ),
            click.option("--lanes", type=click.IntRange(1), metavar="N", default=4, help="Runs on each GPU at once."),
            click.option("--address", metavar="HOST:PORT", help="A Ray cluster, or auto. [default: one made here]"),
            click.option("--device", metavar="NAME", default="auto", show_default=True, help="auto, cpu or cuda."),
            click.option("--data", metavar="DIR", default="data", show_default=True, help="Where the datasets lie."),
            click.option("--download", is_flag=True, help="Fetch a missing dataset from its official address."),
        )
    ):
        command = option(command)
    return command


def backend_of(given: dict[str, Any]) -> Backend:
    """Who does the work."""
    if given["backend"] == "ray":
        from itl.experiments.search.optional_imports import need
        from itl.experiments.search.ray_backend import Cluster

        need("ray")
        names = ("address", "workers", "threads", "lanes", "device")
        return Cluster(**{name: given[name] for name in names})
    from itl.experiments.search.local_backend import Local

    if given["address"] is not None:
        raise UserError("--address is a Ray cluster's; add --backend ray")
    return Local(**{name: given[name] for name in ("workers", "threads", "lanes", "device")})


@click.command(short_help="Every cell of a grid: methods, buffers, seeds, settings.")
@click.argument("grid", metavar="[GRID]", required=False)
@click.option("--out", metavar="DIR", help="Where the runs go, a folder each. [default: runs/ and the grid's name]")
@click.option("--dry-run", is_flag=True, help="Say what there is to do, and do nothing.")
@backend_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
@click.option("--quiet", is_flag=True, help="Print nothing but the folder.")
def sweep(grid: str | None, **given: Any) -> None:
    """Run every cell of a grid: a YAML or JSON file, or one that comes with itl (without GRID: their list).

    What is done is skipped, what was cut goes on: the same command may be given again, or by a second process.
    `itl table` reads the folder.
    """
    from itl.experiments.search import grid as room

    if grid is None:
        _list(room.ready(), given["as_json"])
        return
    if given["as_json"] and given["quiet"]:
        raise UserError("give --json or --quiet, not both")
    found = room.read(grid)
    from itl.experiments.search.sweep import board_of, default_place
    from itl.experiments.search.sweep_jobs import Cells

    out = Path(given["out"]) if given["out"] is not None else default_place(found.name)
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file; choose another --out")
    cells = Cells(out, found.cells)
    board = board_of(cells)
    if not given["dry_run"]:
        work(cells, board, given, f"sweep {found.name}")
    _print(found, cells, board, given)


def work(cells: Cells, board: Board, given: dict[str, Any], heading: str) -> None:
    """Do what is left, with a live table where there is a terminal."""
    from rich.console import Console

    from itl.cli.display.jobs import BoardView
    from itl.experiments.search.sweep import sweep as do

    console = Console(highlight=False)
    shown = console.is_terminal and not console.is_dumb_terminal and not given["as_json"] and not given["quiet"]
    try:
        with BoardView(console, board, heading, "run") if shown else nullcontext():
            do(cells, backend_of(given), board, given["data"], given["download"])
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"interrupted; {_kept(board)}, the same command goes on") from None
    except UserError as error:
        if board.of("done"):
            raise UserError(f"{error} ({_kept(board)})") from error
        raise


def _kept(board: Board) -> str:
    return f"{len(board.of('done'))} of {len(board.entries)} are done"


def _list(ready: dict[str, str], as_json: bool) -> None:
    """The grids that come with itl."""
    if as_json:
        click.echo(json.dumps(ready, indent=1))
        return
    from rich.console import Console

    from itl.cli.display.run_tables import plain_table

    table = plain_table()
    table.add_column("grid", no_wrap=True)
    table.add_column("what")
    for name, about in ready.items():
        table.add_row(name, about)
    Console(highlight=False).print(table)


def _print(grid: Grid, cells: Cells, board: Board, given: dict[str, Any]) -> None:
    from itl.experiments.search.sweep import elsewhere

    failed, others = board.of("failed"), elsewhere(cells) if not given["dry_run"] else []
    if given["as_json"]:
        states = {name: {"state": entry.state, **entry.line} for name, entry in board.entries.items()}
        click.echo(json.dumps({"out": str(cells.out), "missing": list(grid.missing), "cells": states}, indent=1))
    elif given["quiet"]:
        click.echo(cells.out)
    else:
        _show(grid, cells, board, given["dry_run"])
    if failed and not given["dry_run"]:
        first = f"{failed[0].name}: {failed[0].error}"
        raise UserError(f"{len(failed)} of {len(board.entries)} cells failed; the first, {first}")
    if others:
        click.echo(f"itl: {len(others)} cells are being run by another process", err=True)


def _show(grid: Grid, cells: Cells, board: Board, dry: bool) -> None:
    from rich.console import Console

    from itl.cli.display.jobs import board_table

    console = Console(highlight=False)
    wide = console if console.is_terminal else Console(highlight=False, width=120)
    wide.print(board_table(list(board.entries.values()), "run"))
    if grid.missing:
        console.print(f"not here yet: {', '.join(grid.missing)}")
    console.print(f"{grid.name}: {board.count}")
    console.print(f"itl table {cells.out} shows them" if not dry else f"they go to {cells.out}", soft_wrap=True)
