"""`itl search`: settings that do better, found on validation images."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from itl.cli import options
from itl.cli.commands.sweep import backend_of, backend_options, work
from itl.errors import UserError

if TYPE_CHECKING:
    from itl.experiments.search.study import Plan
    from itl.experiments.search.trials import Trials

FIELDS = ("stream", "method", "buffer", "tasks", "order", "order_seed", "curves")


@click.command(short_help="Find better settings, on validation images.")
@click.option("--stream", metavar="NAME", help="What to learn; see `itl streams`. [default: seq-digits]")
@click.option("--method", metavar="NAME", help="How; see `itl methods`. [default: itl]")
@click.option("--buffer", type=int, metavar="N", help="Images in memory. [default: 20 for seq-digits, else 200]")
@click.option("--space", metavar="NAME", help="Settings to search, by name: paper.")
@click.option("--over", multiple=True, metavar="KEY=LOW..HIGH[:log]|A,B,…", help="A setting to search.")
@click.option("--set", "pairs", multiple=True, metavar="KEY=VALUE", help="A setting that stays.")
@click.option("--trials", type=click.IntRange(1), metavar="N", help="In all. [default: 30; a grid's points]")
@click.option("--sampler", metavar="NAME", default="tpe", show_default=True, help="tpe, random or grid.")
@click.option("--no-pruning", is_flag=True, help="Do not give up a trial that is behind after a task.")
@click.option("--seeds", metavar="N,N,…", default="0", show_default=True, help="A trial's runs; their mean counts.")
@click.option("--search-seed", type=int, metavar="N", default=0, show_default=True, help="Of the search itself.")
@click.option("--from", "kept", multiple=True, metavar="RUN", help="Start from the specialists that a run kept.")
@click.option("--final", metavar="N,N,…", help="Then run the best setting on the test images, with these seeds.")
@click.option("--tasks", type=int, metavar="N", help="How many tasks. [default: the stream's usual number]")
@click.option("--order", metavar="N,N,…", help="The classes in the order to teach them.")
@click.option("--order-seed", type=int, metavar="N", help="Draw the order of classes.")
@click.option("--curves", type=int, metavar="N", default=0, help="Points of the curve within a stage. [default: 0]")
@click.option("--out", metavar="DIR", help="The search's folder. [default: in searches/]")
@backend_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
@click.option("--quiet", is_flag=True, help="Print nothing but the best setting's file.")
def search(**given: Any) -> None:
    """Search a method's settings on the validation split, and write the best as a file that `itl run --config` takes.

    The study survives anything: the same command goes on with it, and a second process may join.
    """
    if given["as_json"] and given["quiet"]:
        raise UserError("give --json or --quiet, not both")
    plan = _plan(given)
    seeds = options.numbers(given["final"], "--final")
    from itl.experiments.search import study

    out = Path(given["out"] or Path("searches") / f"{plan.config.name.rpartition('-seed')[0]}")
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file; choose another --out")
    study.check(plan)
    for config in _streams(plan):
        config.load_stream(given["data"], given["download"])
    trials = study.begin(plan, out)
    _work(trials, plan, given)
    path = study.write_best(trials)
    others = study.elsewhere(trials)
    if others:  # the best may be among theirs
        unused = "; whoever ends last uses the test images" if seeds is not None else ""
        click.echo(f"itl: {others} being run by another process{unused}", err=True)
        seeds = None
    if seeds is not None:
        _final(trials, seeds, given)
    _print(trials, path, seeds, given)


def _plan(given: dict[str, Any]) -> Plan:
    from itl.experiments.config import Config
    from itl.experiments.search.space import read
    from itl.experiments.search.study import Plan
    from itl.presets import settings_for
    from itl.results import read_config

    seeds = options.seeds(None, given["seeds"], 0)
    if len(set(seeds)) < len(seeds):
        raise UserError(f"--seeds names a seed twice: {given['seeds']}; give each once")
    kept = tuple(str(Path(place).resolve()) for place in given["kept"])
    if len(set(kept)) < len(kept):
        raise UserError("--from names a run twice; give each once")
    fields = {name: given[name] for name in FIELDS}
    fields["order"] = options.numbers(given["order"], "--order")
    own = options.settings(given["pairs"], None)
    if kept:
        if any(given[name] is not None for name in ("stream", "method", "buffer", "tasks", "order", "order_seed")):
            raise UserError("with --from, what is searched is the run's own stream, method and buffer; leave them out")
        config = replace(Config.of(read_config(kept[0])), keep_specialists=False, curves=0)
        if own:
            raise UserError("with --from, give every setting by --over (one value for one that stays)")
    else:
        config = options.config({}, {**fields, "split": "validation", "seed": seeds[0]}, own)
    settings = settings_for(config.method, config.stream, config.buffer, config.settings)
    space = read(given["over"], given["space"], settings, bool(kept))
    trials = given["trials"]
    if trials is None:
        trials = sum(1 for _ in space.points()) if given["sampler"] == "grid" else 30
    return Plan(config, space, trials, seeds, given["sampler"], not given["no_pruning"], given["search_seed"], kept)


def _streams(plan: Plan) -> list[Any]:
    from itl.experiments.config import Config
    from itl.results import read_config

    return [Config.of(read_config(place)) for place in plan.kept] or [plan.config]


def _work(trials: Trials, plan: Plan, given: dict[str, Any]) -> None:
    """Do the trials that are left, with a live table where there is a terminal."""
    from rich.console import Console

    from itl.cli.display.jobs import BoardView
    from itl.experiments.search.progress import Board

    left = plan.trials - _over(trials)
    if left <= 0:
        return
    console = Console(highlight=False)
    shown = console.is_terminal and not console.is_dumb_terminal and not given["as_json"] and not given["quiet"]
    board = Board()
    heading = f"search of {plan.config.method} on {plan.config.stream}, {plan.trials} trials"
    try:
        with BoardView(console, board, heading, "trial") if shown else nullcontext():
            backend_of(given).drain(trials.spec, board, left, given["data"])
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"interrupted; {_over(trials)} trials are done, the same command goes on") from None


def _over(trials: Trials) -> int:
    from itl.experiments.search.trials import OVER

    return len(trials.study.get_trials(deepcopy=False, states=OVER))


def _final(trials: Trials, seeds: tuple[int, ...], given: dict[str, Any]) -> None:
    from itl.experiments.search import study
    from itl.experiments.search.sweep import board_of
    from itl.experiments.search.sweep_jobs import Cells

    cells = Cells(trials.out / "final", study.final(trials, seeds))
    board = board_of(cells)
    work(cells, board, given, "the best setting on the test images")
    if failed := board.of("failed"):
        raise UserError(f"the run on the test images failed: {failed[0].error}")
    if waiting := board.of("waits"):
        click.echo(f"itl: {len(waiting)} runs on the test images are being done by another process", err=True)


def _print(trials: Trials, path: Path, seeds: tuple[int, ...] | None, given: dict[str, Any]) -> None:
    from itl.experiments.search import plots, study
    from itl.results import RunFolder

    found = study.best(trials)
    assert found is not None
    drawn = plots.draw(trials)
    runs = [] if seeds is None else [trials.out / "final" / config.name for config in study.final(trials, seeds)]
    results = [RunFolder(place).read("result.json") for place in runs if (place / "result.json").exists()]
    if given["quiet"]:
        click.echo(path)
        return
    rows = [
        {
            "number": trial.number,
            "state": trial.state.name.lower(),
            "value": trial.value,
            "settings": dict(trial.params),
            "error": trial.user_attrs.get("error"),
        }
        for trial in trials.study.get_trials(deepcopy=False)
    ]
    if given["as_json"]:
        names = ("seed", "class_il", "task_il")
        final = [{name: result[name] for name in names} for result in results]
        shown = {"out": str(trials.out), "best": found, "config": str(path), "trials": rows, "final": final}
        click.echo(json.dumps({**shown, "importance": plots.importances(trials)}, indent=1))
    else:
        _show(trials, found, rows, results, [path, *drawn])


def _show(trials: Trials, found: Any, rows: list[Any], results: list[Any], files: list[Path]) -> None:
    from rich.console import Console

    from itl.cli.display.run_tables import percent, plain_table
    from itl.results.seed_groups import MeanStd

    console = Console(highlight=False)
    table = plain_table()
    for name in ("trial", "Class-IL", "settings"):
        table.add_column(name, justify="left" if name == "settings" else "right")
    done = [row for row in rows if row["state"] == "complete"]
    for row in sorted(done, key=lambda row: -row["value"])[:5]:
        words = " ".join(
            f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}"
            for key, value in row["settings"].items()
        )
        table.add_row(str(row["number"]), percent(row["value"]), words)
    console.print(table, "")
    given_up = sum(row["state"] == "pruned" for row in rows)
    failed = [row for row in rows if row["state"] == "fail"]
    console.print(f"{len(done)} trials complete, {given_up} given up, {len(failed)} failed; validation images")
    if failed:
        console.print(f"trial {failed[0]['number']}: {failed[0]['error']}")
    if results:
        mean = MeanStd.of([result["class_il"] for result in results])
        console.print(f"the best on the test images: Class-IL {mean.text(1)} (seeds: {len(results)})")
    console.print("wrote " + "\n      ".join(str(path) for path in files), soft_wrap=True)
