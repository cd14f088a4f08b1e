"""`itl search`: find better settings on validation images."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from itl.cli import options
from itl.cli.commands.sweep import backend_options, choose_backend, run_cells
from itl.cli.output import print_json, warn
from itl.cli.parsing import build_config, check_distinct, parse_ints, parse_seeds, parse_settings
from itl.cli.run_folders import check_out_folder
from itl.errors import UserError

if TYPE_CHECKING:
    from itl.experiments.config import Config
    from itl.experiments.search.study import Plan
    from itl.experiments.search.trials import Trials

STREAM_FIELDS = ("stream", "method", "buffer", "tasks", "order", "order_seed")
DEFAULT_TRIALS = 30
MAX_SHOWN_TRIALS = 5


@click.command()
@options.stream_options
@click.option("--space", metavar="NAME", help="Predefined set of settings to search: paper.")
@click.option(
    "--over",
    multiple=True,
    metavar="KEY=LOW..HIGH[:log]|A,B,…",
    help="Setting to search, with its range or its values. Repeatable.",
)
@click.option("--set", "pairs", multiple=True, metavar="KEY=VALUE", help="Setting with a fixed value. Repeatable.")
@click.option(
    "--trials",
    type=click.IntRange(1),
    metavar="N",
    help=f"Number of trials. [default: {DEFAULT_TRIALS}; for --sampler grid, the points of the grid]",
)
@click.option(
    "--sampler", metavar="NAME", default="tpe", show_default=True, help="How settings are chosen: tpe, random or grid."
)
@click.option("--no-pruning", is_flag=True, help="Finish every trial, even one that falls behind after a task.")
@click.option(
    "--seeds", metavar="N,N,…", default="0", show_default=True, help="Seeds of each trial, which is scored by its mean."
)
@click.option("--search-seed", type=int, metavar="N", default=0, show_default=True, help="Seed of the sampler.")
@click.option(
    "--from",
    "kept",
    multiple=True,
    metavar="RUN",
    help="Search the generalist's settings, starting from the specialists saved in RUN. Repeatable.",
)
@click.option("--final", metavar="N,N,…", help="Then run the best settings on the test images, with these seeds.")
@options.class_order_options
@click.option(
    "--curves", type=int, metavar="N", default=0, show_default=True, help="Evaluations during each stage, for curves."
)
@click.option("--out", metavar="DIR", help="Folder of the search. [default: in searches/]")
@backend_options
@options.json_option()
@options.quiet_option("the file with the best settings")
def search(**given: Any) -> None:
    """Search for better settings on validation images.

    Writes the best settings to a file for `itl run --config`. An interrupted search continues when the command is
    repeated, and several processes can work on the same search.
    """
    options.exclusive(json=given["as_json"], quiet=given["quiet"])
    plan = _build_plan(given)
    final_seeds = parse_ints(given["final"], "--final")
    from itl.experiments.search import study

    out = Path(given["out"] or Path("searches") / f"{plan.config.name.rpartition('-seed')[0]}")
    check_out_folder(out)
    study.check(plan)
    for config in _configs_to_load(plan):
        config.load_stream(given["data"], given["download"])
    trials = study.begin(plan, out)
    _run_trials(trials, plan, given)
    path = study.write_best(trials)
    running_elsewhere = study.elsewhere(trials)
    if running_elsewhere:  # the best settings may be among theirs
        postponed = " The process that finishes last will use the test images." if final_seeds is not None else ""
        warn(f"{running_elsewhere} being run by another process.{postponed}")
        final_seeds = None
    if final_seeds is not None:
        _run_final(trials, final_seeds, given)
    _print_results(trials, path, final_seeds, given)


def _build_plan(given: dict[str, Any]) -> Plan:
    """The search that the options describe."""
    from itl.experiments.search.space import read
    from itl.experiments.search.study import Plan
    from itl.presets import settings_for

    seeds = parse_seeds(None, given["seeds"], 0)
    kept = tuple(str(Path(path).resolve()) for path in given["kept"])
    check_distinct(kept, "--from")
    config = _config_of_run(kept[0], given) if kept else _config_of_options(given, seeds[0])
    settings = settings_for(config.method, config.stream, config.buffer, config.settings)
    space = read(given["over"], given["space"], settings, bool(kept))
    trials = given["trials"]
    if trials is None:
        trials = sum(1 for _ in space.points()) if given["sampler"] == "grid" else DEFAULT_TRIALS
    return Plan(config, space, trials, seeds, given["sampler"], not given["no_pruning"], given["search_seed"], kept)


def _config_of_run(run: str, given: dict[str, Any]) -> Config:
    """The configuration of a search that starts from the specialists of a run."""
    from itl.experiments.config import Config
    from itl.results import read_config

    if any(given[name] is not None for name in STREAM_FIELDS):
        raise UserError("--from takes the stream, the method and the buffer from the run. Leave out their options.")
    if given["pairs"]:
        raise UserError("--set cannot be combined with --from. Use --over KEY=VALUE for a fixed setting.")
    return replace(Config.of(read_config(run)), keep_specialists=False, curves=0)


def _config_of_options(given: dict[str, Any], seed: int) -> Config:
    fields = {name: given[name] for name in (*STREAM_FIELDS, "curves")}
    fields["order"] = parse_ints(given["order"], "--order")
    return build_config({}, {**fields, "split": "validation", "seed": seed}, parse_settings(given["pairs"], None))


def _configs_to_load(plan: Plan) -> list[Config]:
    """Configurations whose streams the search needs."""
    from itl.experiments.config import Config
    from itl.results import read_config

    return [Config.of(read_config(path)) for path in plan.kept] or [plan.config]


def _run_trials(trials: Trials, plan: Plan, given: dict[str, Any]) -> None:
    """Run the remaining trials, with a live table if there is a terminal."""
    from itl.cli.display.jobs import JobsDisplay
    from itl.cli.display.live import live_console
    from itl.experiments.search.progress import Board

    remaining = plan.trials - _count_finished(trials)
    if remaining <= 0:
        return
    console, board = live_console(given), Board()
    heading = f"search of {plan.config.method} on {plan.config.stream}, {plan.trials} trials"
    try:
        with nullcontext() if console is None else JobsDisplay(console, board, heading, "trial"):
            choose_backend(given).drain(trials.spec, board, remaining, given["data"])
    except KeyboardInterrupt:
        done = f"{_count_finished(trials)} of {plan.trials} trials are done."
        raise KeyboardInterrupt(f"Interrupted. {done} To continue, repeat the command.") from None


def _count_finished(trials: Trials) -> int:
    from itl.experiments.search.trials import OVER

    return len(trials.study.get_trials(deepcopy=False, states=OVER))


def _run_final(trials: Trials, seeds: tuple[int, ...], given: dict[str, Any]) -> None:
    """Run the best settings on the test images."""
    from itl.experiments.search import study
    from itl.experiments.search.sweep import board_of
    from itl.experiments.search.sweep_jobs import Cells

    cells = Cells(trials.out / "final", study.final(trials, seeds))
    board = board_of(cells)
    run_cells(cells, board, given, "best settings on the test images")
    if failed := board.of("failed"):
        raise UserError(f"The run on the test images failed: {failed[0].error}")
    if waiting := board.of("waits"):
        warn(f"Another process is working on {len(waiting)} of the runs on the test images.")


def _print_results(trials: Trials, path: Path, seeds: tuple[int, ...] | None, given: dict[str, Any]) -> None:
    """Print the trials as a table, as JSON, or only the file with the best settings."""
    from itl.experiments.search import plots, study
    from itl.results import RunFolder

    best = study.best(trials)
    assert best is not None
    plot_files = plots.draw(trials)
    runs = [] if seeds is None else [trials.out / "final" / config.name for config in study.final(trials, seeds)]
    results = [RunFolder(run).read("result.json") for run in runs if (run / "result.json").exists()]
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
        final = [{name: result[name] for name in ("seed", "class_il", "task_il")} for result in results]
        facts = {"out": str(trials.out), "best": best, "config": str(path), "trials": rows, "final": final}
        print_json({**facts, "importance": plots.importances(trials)})
    else:
        _print_table(rows, results, path, plot_files)


def _print_table(rows: list[Any], results: list[Any], path: Path, plot_files: list[Path]) -> None:
    from itl.cli.display.formatting import format_percent, plural
    from itl.cli.display.run_tables import next_step, paths_written
    from itl.cli.display.tables import open_console, plain_table
    from itl.results.seed_groups import MeanStd

    console = open_console()
    table = plain_table("trial", "Class-IL")
    table.add_column("settings")
    complete = [row for row in rows if row["state"] == "complete"]
    for row in sorted(complete, key=lambda row: -row["value"])[:MAX_SHOWN_TRIALS]:
        words = " ".join(
            f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}"
            for key, value in row["settings"].items()
        )
        table.add_row(str(row["number"]), format_percent(row["value"]), words)
    console.print(table, "")
    pruned = sum(row["state"] == "pruned" for row in rows)
    failed = [row for row in rows if row["state"] == "fail"]
    console.print(
        f"{plural(len(complete), 'trial')} complete, {pruned} pruned, {len(failed)} failed (validation images)"
    )
    if failed:
        console.print(f"trial {failed[0]['number']} failed: {failed[0]['error']}")
    if results:
        mean = MeanStd.of([result["class_il"] for result in results])
        console.print(f"best settings on the test images: Class-IL {mean.text(1)} ({plural(len(results), 'seed')})")
    console.print(paths_written([path, *plot_files]), next_step(f"itl run --config {path}"), sep="\n")
