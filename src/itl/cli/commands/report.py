"""`itl report`: an HTML page and figures about runs, or about a model of one's own images."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from itl.cli.output import echo, warn
from itl.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable

REPORT_FILE = "report.html"
LOGGED_STEPS = 10  # lines about the progress of the figures, if there is no terminal


@click.command()
@click.argument("paths", nargs=-1, metavar="RUN…|MODEL", required=True)
@click.option(
    "--out",
    metavar="FILE",
    help="File to write. [default: report.html, for one run or model in its folder, otherwise in the current folder]",
)
@click.option(
    "--figures",
    metavar="DIR",
    help="Also write the figures as PNG and PDF to this folder; for more than four configurations, only comparisons.",
)
@click.option(
    "--kinds",
    metavar="KIND,…",
    help="Kinds of figures for --figures: averages, paired, ablation, bars, buffers, policies, seconds (comparisons); "
    "stages, breakdown, matrix, confusion, pairs, held, arrivals (single runs).",
)
@click.option("--data", metavar="DIR", help="Folder that holds the datasets, for images that the runs did not save.")
def report(paths: tuple[str, ...], out: str | None, figures: str | None, kinds: str | None, data: str | None) -> None:
    """Write an HTML page with figures about runs, or about a model.

    RUN is the folder of a run, or a folder that contains several. MODEL is the folder of a model of your own images.
    The page is one file and needs no internet access.
    """
    if kinds is not None and figures is None:
        raise UserError("--kinds chooses among the figures of --figures. Add --figures DIR.")
    if len(paths) == 1 and (Path(paths[0]) / "CURRENT").is_file():
        if figures is not None:
            raise UserError("--figures draws runs, not models. The page's charts can be saved in the browser.")
        _report_model(paths[0], out)
        return
    from itl.results import find_runs

    runs, problems = find_runs(paths)
    for problem in problems:
        warn(problem)
    if not runs:
        raise UserError("None of these runs can be read.")
    from itl.report import write_figures, write_report

    folder = runs[0].path if len(runs) == 1 and runs[0].path.is_dir() else Path()  # a packed run has no folder
    path = Path(out) if out is not None else folder / REPORT_FILE
    write_report(runs, path, data)
    echo(f"wrote {path}")
    if figures is not None:
        with _progress() as progress:
            written = write_figures(runs, figures, kinds.split(",") if kinds else None, progress)
        echo(f"wrote {len(written)} files to {figures}")


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """Yield a function that shows how many figures are drawn: a bar on a terminal, a few lines elsewhere."""
    from itl.cli.display.live import live_console

    console = live_console({})
    if console is None:

        def log(done: int, total: int) -> None:
            if total > LOGGED_STEPS and done * LOGGED_STEPS // total > (done - 1) * LOGGED_STEPS // total:
                echo(f"{done} of {total} figures")

        yield log
        return
    from rich.progress import Progress

    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("figures", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _report_model(folder: str, out: str | None) -> None:
    """Write the page of a model."""
    import numpy as np

    from itl.apps.model import Model
    from itl.apps.teaching.held_out_evaluation import accuracies_by_lesson
    from itl.cli.commands.info import describe, describe_change, main_facts
    from itl.report import LessonAccuracy, ModelRecord, write_model_report

    model = Model.open(folder, device="cpu")
    memory, facts = model.learner.memory, describe(model)
    count = len(memory)
    index = {name: k for k, name in enumerate(model.classes)}
    record = ModelRecord(
        name=model.path.resolve().name,
        facts=list(main_facts(facts).items()),
        history=[(entry["date"], describe_change(entry)) for entry in facts["history"]],
        classes=model.classes,
        lessons=[LessonAccuracy(*lesson) for lesson in accuracies_by_lesson(model)],
        pixels=memory.pixels[:count].cpu().numpy(),
        labels=np.array([index[model.output_names[k]] for k in memory.labels[:count].tolist()], int),
        tasks=memory.slots.task[:count] + 1,
    )
    path = Path(out) if out is not None else model.path / REPORT_FILE
    write_model_report(record, path)
    echo(f"wrote {path}")
