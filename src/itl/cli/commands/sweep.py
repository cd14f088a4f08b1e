"""`itl sweep`: run every cell of a grid, on one machine or a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from itl.cli import options
from itl.cli.output import echo, print_json, warn
from itl.cli.run_folders import check_out_folder
from itl.errors import UserError

if TYPE_CHECKING:
    from rich.table import Table as RichTable

    from itl.experiments.config import Config
    from itl.experiments.search.grid import Grid
    from itl.experiments.search.progress import ProgressTracker
    from itl.experiments.search.sweep import Backend
    from itl.experiments.search.sweep_jobs import SweepJobs

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


def choose_backend(given: dict[str, Any], deadline: float | None = None) -> Backend:
    """The backend that the options describe; `deadline` is the Unix time before which it stops."""
    names = ["workers", "threads", "device"]
    limit = {} if given["runs_per_gpu"] is None else {"runs_per_gpu": given["runs_per_gpu"]}
    if given["backend"] == "ray":
        from itl.experiments.search.optional_imports import import_optional
        from itl.experiments.search.ray_backend import RayBackend

        import_optional("ray")
        if deadline is not None:
            raise UserError("--minutes works on one machine only. Remove it, or use --backend local.")
        return RayBackend(**{name: given[name] for name in [*names, "address"]}, **limit)
    from itl.experiments.search.local_backend import LocalBackend

    if given["address"] is not None:
        raise UserError("--address names a Ray cluster. Add --backend ray.")
    return LocalBackend(**{name: given[name] for name in names}, **limit, deadline=deadline)


@click.command()
@click.argument("grid", metavar="[GRID]", required=False)
@click.option(
    "--out", metavar="DIR", help="Folder that will contain one folder per run. [default: runs/ and the grid's name]"
)
@click.option("--dry-run", is_flag=True, help="Summarize the runs without starting them; --json lists all.")
@click.option(
    "--minutes",
    type=click.FloatRange(0, min_open=True),
    metavar="N",
    help="Stop after at most N minutes; unfinished runs are saved. [default: no limit]",
)
@backend_options
@options.json_option()
@options.quiet_option("the folder of the runs")
def sweep(grid: str | None, **given: Any) -> None:
    """Run every combination of a grid.

    GRID is a YAML or JSON file of methods, buffers, seeds and settings, or the name of a grid that comes with itl;
    without GRID, these names are listed.

    Finished runs are skipped and interrupted ones continued, so the command can be repeated, also by several processes
    at the same time. With --minutes, the command stops in time, and continues where it stopped when it is repeated.
    `itl table` reads the folder.
    """
    from itl.experiments.search.time_limit import deadline_in

    deadline = deadline_in(given["minutes"])
    from itl.experiments.search import grid as grids

    if grid is None:
        _print_grids(grids.packaged_grids(), given["as_json"])
        return
    options.exclusive(json=given["as_json"], quiet=given["quiet"])
    found = grids.load_grid(grid)
    from itl.experiments.search.sweep import default_sweep_folder, load_progress
    from itl.experiments.search.sweep_jobs import SweepJobs

    out = Path(given["out"]) if given["out"] is not None else default_sweep_folder(found.name)
    check_out_folder(out)
    cells = SweepJobs(out, found.cells)
    tracker = load_progress(cells)
    if not given["dry_run"]:
        run_cells(cells, tracker, given, f"sweep {found.name}", deadline)
    _print_results(found, cells, tracker, given)


def run_cells(
    cells: SweepJobs, tracker: ProgressTracker, given: dict[str, Any], heading: str, deadline: float | None = None
) -> None:
    """Run the unfinished cells until the deadline (Unix time), with a live table if there is a terminal."""
    from itl.cli.display.jobs import show_jobs
    from itl.experiments.search.sweep import sweep as run_sweep

    try:
        with show_jobs(given, tracker, heading, "run"):
            run_sweep(cells, choose_backend(given, deadline), tracker, given["data"], given["download"])
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"Interrupted. {_done(tracker)} To continue, repeat the command.") from None
    except UserError as error:
        if tracker.in_state("done"):
            raise UserError(f"{error} {_done(tracker)}") from error
        raise


def _done(tracker: ProgressTracker) -> str:
    return f"{len(tracker.in_state('done'))} of {len(tracker.jobs)} runs are done."


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


def _print_results(grid: Grid, cells: SweepJobs, tracker: ProgressTracker, given: dict[str, Any]) -> None:
    """Print the runs as a table, as JSON, or only their folder; raise a `UserError` if one failed."""
    from itl.experiments.search.sweep import cells_in_other_processes

    failed = tracker.in_state("failed")
    running_elsewhere = [] if given["dry_run"] else cells_in_other_processes(cells)
    if given["as_json"]:
        states = {name: {"state": job.state, **job.line} for name, job in tracker.jobs.items()}
        print_json({"out": str(cells.out), "missing": list(grid.missing), "cells": states})
    elif given["quiet"]:
        echo(str(cells.out))
    else:
        _print_table(grid, cells, tracker, given["dry_run"])
    if failed and not given["dry_run"]:
        raise UserError(
            f"{len(failed)} of {len(tracker.jobs)} runs failed. The first is {failed[0].name}: {failed[0].error}"
        )
    if running_elsewhere:
        warn(f"Another process is working on {len(running_elsewhere)} of the runs.")


def _print_table(grid: Grid, cells: SweepJobs, tracker: ProgressTracker, dry_run: bool) -> None:
    from itl.cli.display.jobs import jobs_table
    from itl.cli.display.tables import open_console

    console = open_console()
    if dry_run:
        console.print(_grid_table(grid, tracker))
    else:
        open_console(PIPED_WIDTH).print(jobs_table(list(tracker.jobs.values()), "run"))
    if grid.missing:
        console.print(f"methods not available: {', '.join(grid.missing)}")
    console.print(f"{grid.name}: {tracker.summary}")
    if tracker.in_state("waits") and not dry_run:
        console.print("to continue, repeat the command")
    console.print(f"would write to {cells.out}" if dry_run else f"next: itl table {cells.out}", soft_wrap=True)


def _grid_table(grid: Grid, tracker: ProgressTracker) -> RichTable:
    """One row per stream, method and variant: its memory sizes, its seeds, and how many of its runs are done."""
    from itl.cli.display.tables import plain_table

    rows: dict[tuple[str, ...], list[Config]] = {}
    for config in grid.cells:
        name = f"{config.method} ({config.variant})" if config.variant else config.method
        split = "" if config.split == "test" else f" ({config.split})"
        rows.setdefault((config.stream + split, name), []).append(config)
    table = plain_table("stream", "method", "memory sizes", "seeds", "runs", "done", left=4)
    for key, configs in rows.items():
        sizes, seeds = (sorted({getattr(config, name) for config in configs}) for name in ("buffer", "seed"))
        done = sum(tracker.jobs[config.name].state == "done" for config in configs)
        table.add_row(*key, *(",".join(map(str, values)) for values in (sizes, seeds)), str(len(configs)), str(done))
    return table
