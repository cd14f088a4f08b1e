"""`itl report`: an HTML page and figures about runs."""

from __future__ import annotations

from pathlib import Path

import click

from itl.cli.output import echo, warn
from itl.errors import UserError

FILE_NAME = "report.html"


@click.command()
@click.argument("paths", nargs=-1, metavar="RUN…", required=True)
@click.option(
    "--out",
    metavar="FILE",
    help="File to write. [default: report.html, for one run in its folder, otherwise in the current folder]",
)
@click.option("--figures", metavar="DIR", help="Also write every figure as PNG and PDF to this folder.")
@click.option("--data", metavar="DIR", help="Folder that holds the datasets, for images that the runs did not save.")
def report(paths: tuple[str, ...], out: str | None, figures: str | None, data: str | None) -> None:
    """Write an HTML page with figures about runs.

    RUN is the folder of a run, or a folder that contains several. The page is one file and needs no internet access.
    """
    from itl.results import find_runs

    runs, problems = find_runs(paths)
    for problem in problems:
        warn(problem)
    if not runs:
        raise UserError("None of these runs can be read.")
    from itl.report import write_figures, write_report

    folder = runs[0].path if len(runs) == 1 and runs[0].path.is_dir() else Path()  # a packed run has no folder
    path = Path(out) if out is not None else folder / FILE_NAME
    write_report(runs, path, data)
    echo(f"wrote {path}")
    if figures is not None:
        echo(f"wrote {len(write_figures(runs, figures))} files to {figures}")
