"""`itl refine`: repeat the generalist step of a run with other settings."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from itl.callbacks.base import Callback
from itl.cli import options
from itl.cli.output import print_json
from itl.cli.parsing import expand_settings, parse_ints
from itl.errors import UserError

if TYPE_CHECKING:
    from rich.status import Status

    from itl.engine.stage import Stage
    from itl.learner import Learner

Attempts = list[dict[str, Any]]


@click.command()
@click.argument("run", metavar="RUN")
@click.option(
    "--set",
    "pairs",
    multiple=True,
    metavar="KEY=VALUE[,…]",
    help="Change a setting of the generalist; several values are tried one by one. Repeatable.",
)
@click.option(
    "--tasks",
    default="last",
    show_default=True,
    metavar="last|all|N,N,…",
    help="Tasks whose generalist is trained again.",
)
@options.data_option
@options.device_option
@click.option("--out", metavar="FILE", help="File to write. [default: refine-001.json, -002, … in RUN]")
@options.json_option("all attempts")
def refine(
    run: str, pairs: tuple[str, ...], tasks: str, data: str, device: str, out: str | None, as_json: bool
) -> None:
    """Repeat the generalist step of a run with other settings.

    Starts from the specialists that RUN saved with --keep-specialists, so it takes seconds instead of a whole run.
    """
    from itl.experiments import refine as refinement
    from itl.experiments.config import Config
    from itl.results import RunFolder, read_config
    from itl.results.validation import check_lines

    folder = RunFolder(run)
    lines = folder.read_lines()
    check_lines(lines, folder.path / "metrics.jsonl")
    chosen = _parse_tasks(tasks, refinement.saved_specialists(folder))
    combinations = expand_settings(pairs)
    for settings in combinations:
        refinement.check_settings(settings)
    if out is not None and Path(out).exists():
        raise UserError(f"{out} already exists. Choose another --out.")
    stream = Config.from_dict(read_config(folder.path)).load_stream(data)
    plan = [(task, settings) for task in chosen for settings in combinations]
    attempts: Attempts = []
    with _status(as_json) as status:
        for number, (task, settings) in enumerate(plan, 1):
            callback = Callback() if status is None else _StatusUpdater(status, f"attempt {number} of {len(plan)}")
            attempt = refinement.refine if len(plan) == 1 else refinement.refine_or_error
            attempts.append(attempt(run, stream, task, settings, device=device, callbacks=[callback]))
    path = refinement.write_attempts(folder, _command(run, pairs, tasks), attempts, out)
    if as_json:
        print_json({"tries": attempts, "file": str(path)})
    else:
        _print_attempts(lines, attempts, path)


def _parse_tasks(text: str, saved: Sequence[int]) -> Sequence[int]:
    """The tasks named by `--tasks`, which must be among the `saved` ones."""
    if text == "last":
        return saved[-1:]
    if text == "all":
        return saved
    try:
        tasks = parse_ints(text, "--tasks") or ()
    except UserError:
        raise UserError(f"--tasks takes last, all or numbers such as 3,5, not '{text}'.") from None
    for task in tasks:
        if task not in saved:
            raise UserError(f"The run has no specialist of task {task}. It has those of {', '.join(map(str, saved))}.")
    return tasks


def _command(run: str, pairs: Sequence[str], tasks: str) -> str:
    """The command line to record."""
    words = [word for pair in pairs for word in ("--set", pair)]
    return shlex.join(["itl", "refine", Path(run).name, *words, *([] if tasks == "last" else ["--tasks", tasks])])


def _status(as_json: bool) -> Any:
    """A live status line, if there is a terminal."""
    from itl.cli.display.live import live_console

    console = live_console({"as_json": as_json})
    return nullcontext() if console is None else console.status("loading", refresh_per_second=4)


class _StatusUpdater(Callback):
    """Shows the current stage in the status line."""

    def __init__(self, status: Status, label: str) -> None:
        self.status, self.label = status, label

    def on_round_end(self, learner: Learner, stage: Stage, epoch: int, loss: float) -> None:
        position = f"task {len(learner.tasks)}, {stage.name}, epoch {epoch} of {stage.epochs}"
        self.status.update(f"{self.label}: {position}, loss {loss:.3g}")


def _print_attempts(lines: list[dict[str, Any]], attempts: Attempts, path: Path) -> None:
    """Print one table per task: the attempts, best first, then the run itself, whose metrics are `lines`."""
    from itl.cli.display.run_tables import stage_table
    from itl.cli.display.tables import open_console
    from itl.results import stage_scores

    console = open_console()
    for task in sorted({attempt["task"] for attempt in attempts}):
        of_task = [attempt for attempt in attempts if attempt["task"] == task]
        of_task.sort(key=lambda attempt: -attempt["stages"]["expert"]["class_il"] if "stages" in attempt else 1)
        rows = [(_label(attempt["settings"]), attempt.get("stages", {})) for attempt in of_task]
        original = stage_scores(lines, task)
        rows += [("(original run)", original)] if original else []
        console.print(stage_table(rows, f"after task {task}"), "")
    for attempt in attempts:
        if "error" in attempt:
            console.print(f"{', '.join(_label(attempt['settings']).splitlines())}: {attempt['error']}")
    seconds = sum(attempt["seconds"]["total"] for attempt in attempts if "seconds" in attempt)
    console.print(f"{seconds:.1f} s in total\nwrote {path}", soft_wrap=True)


def _label(settings: dict[str, Any]) -> str:
    """Changed settings, one per line."""
    from itl.settings import as_words

    return "\n".join(as_words(settings)) or "unchanged"
