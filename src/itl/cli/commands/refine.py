"""`itl refine`: other settings for the generalist, in seconds."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from itl.callbacks.base import Callback
from itl.cli import options
from itl.errors import UserError

if TYPE_CHECKING:
    from rich.status import Status

    from itl.engine.stage import Stage
    from itl.learner import Learner
    from itl.results import RunFolder

Tries = list[dict[str, Any]]


@click.command(short_help="Redo a run's generalist step with other settings.")
@click.argument("run", metavar="RUN")
@click.option("--set", "pairs", multiple=True, metavar="KEY=VALUE[,…]", help="A setting; with several values, each.")
@click.option("--tasks", default="last", show_default=True, metavar="last|all|N,N,…", help="After which tasks.")
@click.option("--data", metavar="DIR", default="data", show_default=True, help="Where the datasets lie.")
@click.option("--device", metavar="NAME", default="auto", show_default=True, help="auto, cpu or cuda.")
@click.option("--out", metavar="FILE", help="What to write. [default: refine-001.json, -002, … in the run's folder]")
@click.option("--json", "as_json", is_flag=True, help="Print what was tried as one JSON object and nothing else.")
def refine(
    run: str, pairs: tuple[str, ...], tasks: str, data: str, device: str, out: str | None, as_json: bool
) -> None:
    """Redo the generalist step of a run with other settings, from the specialists it kept (--keep-specialists)."""
    from itl.experiments import refine as room
    from itl.experiments.config import Config
    from itl.results import RunFolder, read_config

    folder = RunFolder(run)
    chosen = _tasks(tasks, room.kept(folder))
    trials = options.alternatives(pairs)
    for settings in trials:
        room.check(settings)
    if out is not None and Path(out).exists():
        raise UserError(f"{out} exists already; choose another --out")
    stream = Config.of(read_config(folder.path)).load_stream(data)
    plan = [(task, settings) for task in chosen for settings in trials]
    tries: Tries = []
    with _status(as_json) as status:
        for number, (task, settings) in enumerate(plan, 1):
            watch = Callback() if status is None else _Watch(status, f"try {number} of {len(plan)}")
            attempt = room.refine if len(plan) == 1 else room.tried
            tries.append(attempt(run, stream, task, settings, device=device, callbacks=[watch]))
    path = room.record(folder, _command(run, pairs, tasks), tries, out)
    if as_json:
        click.echo(json.dumps({"tries": tries, "file": str(path)}, indent=1))
    else:
        _show(folder, tries, path)


def _tasks(text: str, kept: Sequence[int]) -> Sequence[int]:
    if text == "last":
        return kept[-1:]
    if text == "all":
        return kept
    try:
        chosen = options.numbers(text, "--tasks") or ()
    except UserError:
        raise UserError(f"--tasks takes last, all or numbers such as 3,5, not '{text}'") from None
    for task in chosen:
        if task not in kept:
            raise UserError(f"there is no specialist of task {task}; kept are {', '.join(map(str, kept))}")
    return chosen


def _command(run: str, pairs: Sequence[str], tasks: str) -> str:
    words = [word for pair in pairs for word in ("--set", pair)]
    return shlex.join(["itl", "refine", Path(run).name, *words, *([] if tasks == "last" else ["--tasks", tasks])])


def _status(as_json: bool) -> Any:
    """A line that says what is going on, where there is a terminal."""
    from rich.console import Console

    console = Console(highlight=False)
    return console.status("reading", refresh_per_second=4) if console.is_terminal and not as_json else nullcontext()


class _Watch(Callback):
    """Keeps that line true."""

    def __init__(self, status: Status, which: str) -> None:
        self.status, self.which = status, which

    def round_ends(self, learner: Learner, stage: Stage, epoch: int, loss: float) -> None:
        epochs = stage.planner.epochs_done(stage.planner.num_rounds - 1)
        where = f"task {len(learner.tasks)}, {stage.name}, epoch {epoch} of {epochs}"
        self.status.update(f"{self.which}: {where}, loss {loss:.3g}")


def _show(folder: RunFolder, tries: Tries, path: Path) -> None:
    """A table a task, the best first, with what the run itself had reached."""
    from rich.console import Console

    from itl.cli.display.run_tables import stage_table
    from itl.results import stage_scores

    console = Console(highlight=False)
    for task in sorted({one["task"] for one in tries}):
        mine = [one for one in tries if one["task"] == task]
        mine.sort(key=lambda one: -one["stages"]["expert"]["class_il"] if "stages" in one else 1)
        rows = [(_label(one["settings"]), one.get("stages", {})) for one in mine]
        run = stage_scores(folder.lines(), task)
        rows += [("(the run itself)", run)] if run else []
        console.print(stage_table(rows, f"after task {task}"), "")
    for one in tries:
        if "error" in one:
            console.print(f"{', '.join(_label(one['settings']).splitlines())}: {one['error']}")
    seconds = sum(one["seconds"]["total"] for one in tries if "seconds" in one)
    console.print(f"{seconds:.1f} seconds\nwrote {path}", soft_wrap=True)


def _label(settings: dict[str, Any]) -> str:
    words = (f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in settings.items())
    return "\n".join(words) or "as it was"
