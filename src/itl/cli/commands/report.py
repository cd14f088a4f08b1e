"""`itl report`: a page of figures from runs, and the same figures for a paper."""

from __future__ import annotations

from pathlib import Path

import click

from itl.errors import UserError

NAME = "report.html"


@click.command(short_help="A page of figures from one run or many.")
@click.argument("places", nargs=-1, metavar="RUN…", required=True)
@click.option("--out", metavar="FILE", help="The page. [default: report.html in the run's folder, else here]")
@click.option("--figures", metavar="DIR", help="Also draw every figure as PNG and PDF there.")
@click.option("--data", metavar="DIR", help="Where the datasets lie, for pictures that the records do not have.")
def report(places: tuple[str, ...], out: str | None, figures: str | None, data: str | None) -> None:
    """Show what happened in runs: one HTML file that opens anywhere, offline.

    Takes the folders of runs, or folders that hold some.
    """
    from itl.results import find_runs

    runs, wrong = find_runs(places)
    for line in wrong:
        click.echo(f"itl: {line}", err=True)
    if not runs:
        raise UserError("none of these runs can be read")
    from itl.report import write_figures, write_report

    path = Path(out) if out is not None else (runs[0].path / NAME if len(runs) == 1 else Path(NAME))
    write_report(runs, path, data)
    click.echo(f"wrote {path}")
    if figures is not None:
        drawn = write_figures(runs, figures)
        click.echo(f"wrote {len(drawn)} files to {figures}")
