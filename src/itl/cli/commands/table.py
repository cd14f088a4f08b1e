"""`itl table`: published numbers beside ours."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from itl.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from itl.results.render import TextTable
    from itl.results.table import Table, TableSection

RESULTS = "results"
WIDE = 200  # columns, where there is no terminal to fit
NAMED = (12, 48)  # columns of a method and what is its own, at least and at most: further settings go below


@click.command(short_help="Published numbers beside ours.")
@click.argument("places", nargs=-1, metavar="[RUN|FOLDER]…")
@click.option("--stream", metavar="NAME", help="This stream alone.")
@click.option("--split", metavar="NAME", default="test", show_default=True, help="Runs on test or validation images.")
@click.option("--seconds", is_flag=True, help="Also where the time of a run goes.")
@click.option("--hide-missing", is_flag=True, help="Leave out published cells without a run of ours.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "markdown", "latex", "json"]),
    default="table",
    show_default=True,
    help="What to print.",
)
@click.option("--json", "as_json", is_flag=True, help="Short for --format json.")
@click.option("--out", metavar="FILE", help="Write it there instead.")
def table(
    places: tuple[str, ...],
    stream: str | None,
    split: str,
    seconds: bool,
    hide_missing: bool,
    form: str,
    as_json: bool,
    out: str | None,
) -> None:
    """Show what runs reached beside what is published: mean ± standard deviation over seeds, the difference in
    published standard deviations, the hardware and the command that repeats it.

    Reads results/ in the present folder, or the runs and folders given. Runs of other settings, variants and splits
    are never averaged together.
    """
    from itl.results import render
    from itl.results.runs import find_runs
    from itl.results.table import build

    if split not in ("test", "validation"):
        raise UserError(f"--split takes test or validation, not '{split}'")
    if not places and not Path(RESULTS).is_dir():
        raise UserError(f"there is no {RESULTS} here; name the runs, or the folders that hold them")
    runs, wrong = find_runs(places or (RESULTS,))
    found = build(runs, wrong=wrong, split=split, stream=stream, missing=not hide_missing)
    if stream is not None and not found.sections:
        raise UserError(f"there is no run on '{stream}' and nothing published; itl streams lists the streams")
    form = "json" if as_json else form
    if form == "table" and out is None:
        _show(found, seconds)
        return
    texts = {"markdown": render.markdown, "latex": render.latex}
    text = render.as_json(found) if form == "json" else texts.get(form, render.markdown)(found, seconds)
    if out is None:
        click.echo(text, nl=False)
    else:
        _write(out, text)
        click.echo(f"wrote {out}", err=True)
    if form != "json":
        for line in wrong:
            click.echo(f"itl: {line}", err=True)


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}; choose another --out") from None


def _show(found: Table, seconds: bool) -> None:
    """Every section on the terminal: the table, then hardware and command of each cell of ours."""
    from rich.console import Console

    from itl.results import render

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=WIDE)
    for section in found.sections:
        console.print(f"[bold]{section.title}[/bold]", end="\n\n")
        _grid(console, render.accuracies(section, short=True))
        if seconds and any(row.ours for row in section.rows):
            console.print()
            _grid(console, render.seconds(section, short=True))
        _commands(console, section)
        console.print()
    for note in found.notes:
        click.echo(f"itl: {note}", err=True)


def _grid(console: Console, grid: TextTable) -> None:
    from rich.text import Text

    from itl.cli.display.run_tables import plain_table
    from itl.results.render import NOT_RUN

    grid = _fitting(grid, console.width)
    shown = plain_table()
    before = ""
    for place, (group, name) in enumerate(grid.headings):
        heading = f"{group if group != before else ''}\n{name}"
        own: dict[str, Any] = {"justify": "right", "no_wrap": True} if place else {"max_width": NAMED[1]}
        shown.add_column(heading, overflow="fold", **own)
        before = group
    for row in grid.rows:
        shown.add_row(*(Text(word, "dim" if NOT_RUN in row else "") for word in row))
    console.print(shown)


def _fitting(grid: TextTable, width: int) -> TextTable:
    """Without the differences, where a terminal is too narrow for them beside the methods' names."""
    from itl.results.render import DIFFERENCE, TextTable

    table = [[name for _, name in grid.headings], *grid.rows]
    first, *others = (max(map(len, column)) for column in zip(*table, strict=True))
    if min(first, NAMED[0]) + sum(others) + 2 * len(table[0]) <= width:
        return grid
    kept = [place for place, name in enumerate(table[0]) if name != DIFFERENCE]
    return TextTable([grid.headings[place] for place in kept], [[row[place] for place in kept] for row in grid.rows])


def _commands(console: Console, section: TableSection) -> None:
    from itl.results.render import commands

    repeated: dict[str, list[str]] = {}
    for hardware, command in commands(section):
        repeated.setdefault(hardware, []).append(command)
    for hardware, lines in repeated.items():
        console.print(f"\non {hardware}:", style="dim")
        for line in lines:
            console.print(f"  {line}", style="dim", soft_wrap=True, markup=False)
