"""`itl table`: compare runs with published results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from itl.cli.output import echo, warn, write_text
from itl.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from itl.results.render import TextTable
    from itl.results.runs import Run
    from itl.results.table import Table, TableSection

DEFAULT_FOLDERS = ("results", "runs")  # the records of a clone, and where `itl run` writes
PIPED_WIDTH = 200  # columns, if the output is not a terminal
METHOD_WIDTH = (12, 48)  # columns of the method and its changed settings, at least and at most


@click.command()
@click.argument("paths", nargs=-1, metavar="[RUN|FOLDER]…")
@click.option("--stream", metavar="NAME", help="Show only this stream.")
@click.option(
    "--split", metavar="NAME", default="test", show_default=True, help="Runs evaluated on test or validation images."
)
@click.option("--seconds", is_flag=True, help="Also show the time spent in each stage.")
@click.option("--hide-missing", is_flag=True, help="Leave out published results without a run.")
@click.option(
    "--format",
    "output_format",
    type=click.Choice(["table", "markdown", "latex", "json"]),
    default="table",
    show_default=True,
    help="Output format.",
)
@click.option("--json", "as_json", is_flag=True, help="Short for --format json.")
@click.option("--out", metavar="FILE", help="Write to this file instead of printing.")
def table(
    paths: tuple[str, ...],
    stream: str | None,
    split: str,
    seconds: bool,
    hide_missing: bool,
    output_format: str,
    as_json: bool,
    out: str | None,
) -> None:
    """Compare runs with published results.

    Shows mean ± standard deviation over seeds, the difference to the published mean, the hardware, and the commands
    that repeat the runs. Runs with different settings, variants or splits are never averaged together.

    The difference has a 95 % confidence interval over our seeds. The mark "within 1 σ" is yes if our mean is no more
    than one published standard deviation below the published mean, or above it, in both Class-IL and Task-IL.

    Reads the given runs and folders of runs; without any, the folder results/ if it contains runs, otherwise runs/.
    """
    from itl.results import render
    from itl.results.runs import find_runs
    from itl.results.table import build

    if split not in ("test", "validation"):
        raise UserError(f"--split takes test or validation, not '{split}'.")
    runs, problems = find_runs(paths) if paths else _default_runs()
    found = build(runs, damaged=problems, split=split, stream=stream, missing=not hide_missing)
    if stream is not None and not found.sections:
        raise UserError(f"There are no runs and no published results for '{stream}'. `itl streams` lists the streams.")
    output_format = "json" if as_json else output_format
    if output_format == "table" and out is None:
        _print_table(found, seconds)
        return
    if output_format == "json":
        text = render.as_json(found)
    else:
        text = (render.latex if output_format == "latex" else render.markdown)(found, seconds)
    if out is None:
        echo(text, newline=False)
    else:
        write_text(out, text)
        click.echo(f"wrote {out}", err=True)
    if output_format != "json":
        for problem in problems:
            warn(problem)


def _default_runs() -> tuple[list[Run], list[str]]:
    """The runs of the first default folder that contains any, and one line for each problem."""
    from itl.results.runs import contains_runs, find_runs

    folder = next(filter(contains_runs, DEFAULT_FOLDERS), None)
    if folder is not None:
        return find_runs((folder,))
    return [], ["there are no runs in results/ or runs/, so only published results are shown; `itl run` makes a run"]


def _print_table(found: Table, seconds: bool) -> None:
    """Print every section: the results, then hardware and commands."""
    from itl.cli.display.tables import open_console
    from itl.results import render

    console = open_console(PIPED_WIDTH)
    for section in found.sections:
        console.print(f"[bold]{section.title}[/bold]", end="\n\n")
        _print_grid(console, render.accuracies(section, short=True))
        if seconds and any(row.ours for row in section.rows):
            console.print()
            _print_grid(console, render.seconds(section, short=True))
        _print_commands(console, section)
        console.print()
    if any(section.kind == "published" for section in found.sections):
        console.print(render.MARK_NOTE, style="dim", markup=False)
    for note in found.notes:
        warn(note)


def _print_grid(console: Console, grid: TextTable) -> None:
    from rich.text import Text

    from itl.cli.display.tables import plain_table
    from itl.results.render import NOT_RUN

    grid = _fit_width(grid, console.width)
    shown = plain_table()
    previous_group = ""
    for column, (group, name) in enumerate(grid.headings):
        heading = f"{group if group != previous_group else ''}\n{name}"
        style: dict[str, Any] = {"justify": "right", "no_wrap": True} if column else {"max_width": METHOD_WIDTH[1]}
        shown.add_column(heading, overflow="fold", **style)
        previous_group = group
    for row in grid.rows:
        shown.add_row(*(Text(cell, "dim" if NOT_RUN in row else "") for cell in row))
    console.print(shown)


def _fit_width(grid: TextTable, width: int) -> TextTable:
    """The grid, on a narrow terminal without less important columns: differences imply the published results."""
    from itl.results.render import WITHIN, TextTable

    for dropped in (WITHIN[1], "published", "seeds", "memory", "saving", "evaluation"):
        table = [[name for _, name in grid.headings], *grid.rows]
        first, *others = (max(map(len, column)) for column in zip(*table, strict=True))
        if min(first, METHOD_WIDTH[0]) + sum(others) + 2 * len(others) <= width:
            break
        columns = [column for column, name in enumerate(table[0]) if name != dropped]
        grid = TextTable([grid.headings[k] for k in columns], [[row[k] for k in columns] for row in grid.rows])
    return grid


def _print_commands(console: Console, section: TableSection) -> None:
    """Print the commands that repeat the runs, by hardware."""
    from itl.results.render import commands

    by_hardware: dict[str, list[str]] = {}
    for hardware, command in commands(section):
        by_hardware.setdefault(hardware, []).append(command)
    for hardware, lines in by_hardware.items():
        console.print(f"\non {hardware}:", style="dim")
        for line in lines:
            console.print(f"  {line}", style="dim", soft_wrap=True, markup=False)
