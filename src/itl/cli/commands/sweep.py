"""`itl sweep`: run every cell of a grid, on one machine or a cluster."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from itl.cli import options
from itl.cli.output import print_json, warn
from itl.cli.run_folders import check_out_folder
from itl.errors import UserError

if TYPE_CHECKING:
    from itl.experiments.search.grid import Grid
    from itl.experiments.search.progress import Board
    from itl.experiments.search.sweep import Backend
    from itl.experiments.search.sweep_jobs import Cells

PIPED_WIDTH = 120  # columns, if the output is not a terminal

backend_options = options.combine(
    click.option(
        "--backend",
        type=click.Choice(["local", "ray"]),
        default="local",
        show_default=True,
        help="Use processes on this machine or a Ray cluster.",
    ),
    click.option(
        "--workers", type=click.IntRange(1), metavar="N", help="Number of processes, or of GPUs to use. [default: all]"
    ),
    click.option(
        "--threads",
        type=click.IntRange(1),
        metavar="N",
        help="CPU threads per process. [default: the cores divided by the processes]",
    ),
    options.runs_per_gpu_option,
    click.option(
        "--address", metavar="HOST:PORT", help="Ray cluster to join, or auto. [default: start Ray on this machine]"
    ),
    options.device_option,
    options.data_option,
    options.download_option,
)


def choose_backend(given: dict[str, Any]) -> Backend:
    """The backend that the options describe."""
    names = ["workers", "threads", "device"]
    limit = {} if given["runs_per_gpu"] is None else {"lanes": given["runs_per_gpu"]}
    if given["backend"] == "ray":
        from itl.experiments.search.optional_imports import need
        from itl.experiments.search.ray_backend import Cluster

        need("ray")
        return Cluster(**{name: given[name] for name in [*names, "address"]}, **limit)
    from itl.experiments.search.local_backend import Local

    if given["address"] is not None:
        raise UserError("--address names a Ray cluster. Add --backend ray.")
    return Local(**{name: given[name] for name in names}, **limit)


@click.command()
@click.argument("grid", metavar="[GRID]", required=False)
@click.option(
    "--out", metavar="DIR", help="Folder that will contain one folder per run. [default: runs/ and the grid's name]"
)
@click.option("--dry-run", is_flag=True, help="List the runs without starting them.")
@backend_options
@options.json_option()
@options.quiet_option("the folder of the runs")
def sweep(grid: str | None, **given: Any) -> None:
    """Run every combination of a grid.

    GRID is a YAML or JSON file of methods, buffers, seeds and settings, or the name of a grid that comes with itl;
    without GRID, these names are listed.

    Finished runs are skipped and interrupted ones continued, so the command can be repeated, also by several processes
    at the same time. `itl table` reads the folder.
    """
    from itl.experiments.search import grid as grids

    if grid is None:
        _print_grids(grids.ready(), given["as_json"])
        return
    options.exclusive(json=given["as_json"], quiet=given["quiet"])
    found = grids.read(grid)
    from itl.experiments.search.sweep import board_of, default_place
    from itl.experiments.search.sweep_jobs import Cells

    out = Path(given["out"]) if given["out"] is not None else default_place(found.name)
    check_out_folder(out)
    cells = Cells(out, found.cells)
    board = board_of(cells)
    if not given["dry_run"]:
        run_cells(cells, board, given, f"sweep {found.name}")
    _print_results(found, cells, board, given)


def run_cells(cells: Cells, board: Board, given: dict[str, Any], heading: str) -> None:
    """Run the unfinished cells, with a live table if there is a terminal."""
    from itl.cli.display.jobs import JobsDisplay
    from itl.cli.display.live import live_console
    from itl.experiments.search.sweep import sweep as run_sweep

    console = live_console(given)
    try:
        with nullcontext() if console is None else JobsDisplay(console, board, heading, "run"):
            run_sweep(cells, choose_backend(given), board, given["data"], given["download"])
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"Interrupted. {_done(board)} To continue, repeat the command.") from None
    except UserError as error:
        if board.of("done"):
            raise UserError(f"{error} {_done(board)}") from error
        raise


def _done(board: Board) -> str:
    return f"{len(board.of('done'))} of {len(board.entries)} runs are done."


def _print_grids(grids: dict[str, str], as_json: bool) -> None:
    """List the grids that come with itl."""
    if as_json:
        print_json(grids)
        return
    from itl.cli.display.tables import open_console, plain_table

    table = plain_table("grid", left=1)
    table.add_column("contents")
    for name, description in grids.items():
        table.add_row(name, description)
    open_console().print(table)


def _print_results(grid: Grid, cells: Cells, board: Board, given: dict[str, Any]) -> None:
    """Print the runs as a table, as JSON, or only their folder; raise a `UserError` if one failed."""
    from itl.experiments.search.sweep import elsewhere

    failed, running_elsewhere = board.of("failed"), elsewhere(cells) if not given["dry_run"] else []
    if given["as_json"]:
        states = {name: {"state": entry.state, **entry.line} for name, entry in board.entries.items()}
        print_json({"out": str(cells.out), "missing": list(grid.missing), "cells": states})
    elif given["quiet"]:
        click.echo(cells.out)
    else:
        _print_table(grid, cells, board, given["dry_run"])
    if failed and not given["dry_run"]:
        raise UserError(
            f"{len(failed)} of {len(board.entries)} runs failed. The first is {failed[0].name}: {failed[0].error}"
        )
    if running_elsewhere:
        warn(f"Another process is working on {len(running_elsewhere)} of the runs.")


def _print_table(grid: Grid, cells: Cells, board: Board, dry_run: bool) -> None:
    from itl.cli.display.jobs import jobs_table
    from itl.cli.display.tables import open_console

    open_console(PIPED_WIDTH).print(jobs_table(list(board.entries.values()), "run"))
    console = open_console()
    if grid.missing:
        console.print(f"methods not available: {', '.join(grid.missing)}")
    console.print(f"{grid.name}: {board.count}")
    console.print(f"would write to {cells.out}" if dry_run else f"next: itl table {cells.out}", soft_wrap=True)
