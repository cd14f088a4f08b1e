"""`itl search`: find better settings on validation images."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from itl.cli import options
from itl.cli.commands.sweep import backend_options, choose_backend, run_cells
from itl.cli.output import echo, print_json, warn
from itl.cli.parsing import build_config, check_distinct, parse_ints, parse_seeds, parse_settings
from itl.cli.run_folders import check_out_folder
from itl.errors import UserError

if TYPE_CHECKING:
    from itl.experiments.config import Config
    from itl.experiments.search.study import SearchPlan
    from itl.experiments.search.trials import TrialJobs

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
    "specialist_runs",
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
    study.check_plan(plan)
    for config in _configs_to_load(plan):
        config.load_stream(given["data"], given["download"])
    trials = study.open_search(plan, out)
    _run_trials(trials, plan, given)
    path = study.write_best(trials)
    running_elsewhere = study.describe_running_trials(trials)
    if running_elsewhere:  # the best settings may be among theirs
        postponed = " The process that finishes last will use the test images." if final_seeds is not None else ""
        warn(f"{running_elsewhere} being run by another process.{postponed}")
        final_seeds = None
    if final_seeds is not None:
        _run_final(trials, final_seeds, given)
    _print_results(trials, path, final_seeds, given)


def _build_plan(given: dict[str, Any]) -> SearchPlan:
    """The search that the options describe."""
    from itl.experiments.search.space import parse_space
    from itl.experiments.search.study import SearchPlan
    from itl.presets import settings_for

    seeds = parse_seeds(None, given["seeds"], 0)
    specialist_runs = tuple(str(Path(path).resolve()) for path in given["specialist_runs"])
    check_distinct(specialist_runs, "--from")
    config = _config_of_run(specialist_runs[0], given) if specialist_runs else _config_of_options(given, seeds[0])
    settings = settings_for(config.method, config.stream, config.buffer, config.settings)
    space = parse_space(given["over"], given["space"], settings, bool(specialist_runs))
    trials = given["trials"]
    if trials is None:
        trials = sum(1 for _ in space.points()) if given["sampler"] == "grid" else DEFAULT_TRIALS
    trials = min(trials, space.size or trials)  # no point is tried twice
    return SearchPlan(
        config,
        space,
        trials,
        seeds,
        sampler=given["sampler"],
        prune=not given["no_pruning"],
        seed=given["search_seed"],
        specialist_runs=specialist_runs,
    )


def _config_of_run(run: str, given: dict[str, Any]) -> Config:
    """The configuration of a search that starts from the specialists of a run."""
    from itl.experiments.config import Config
    from itl.results import read_config

    if any(given[name] is not None for name in STREAM_FIELDS):
        raise UserError("--from takes the stream, the method and the buffer from the run. Leave out their options.")
    if given["pairs"]:
        raise UserError("--set cannot be combined with --from. Use --over KEY=VALUE for a fixed setting.")
    return replace(Config.from_dict(read_config(run)), keep_specialists=False, curves=0)


def _config_of_options(given: dict[str, Any], seed: int) -> Config:
    fields = {name: given[name] for name in (*STREAM_FIELDS, "curves")}
    fields["order"] = parse_ints(given["order"], "--order")
    return build_config({}, {**fields, "split": "validation", "seed": seed}, parse_settings(given["pairs"], None))


def _configs_to_load(plan: SearchPlan) -> list[Config]:
    """Configurations whose streams the search needs."""
    from itl.experiments.config import Config
    from itl.results import read_config

    return [Config.from_dict(read_config(path)) for path in plan.specialist_runs] or [plan.config]


def _run_trials(trials: TrialJobs, plan: SearchPlan, given: dict[str, Any]) -> None:
    """Run the remaining trials, with a live table if there is a terminal."""
    from itl.cli.display.jobs import show_jobs
    from itl.experiments.search.progress import ProgressTracker

    remaining = plan.trials - _count_finished(trials)
    if remaining <= 0:
        return
    tracker = ProgressTracker(f"trial-{number:04d}" for number in range(plan.trials))
    heading = f"search of {plan.config.method} on {plan.config.stream}, {plan.trials} trials"
    try:
        with show_jobs(given, tracker, heading, "trial"):
            choose_backend(given).run_jobs(trials.spec, tracker, remaining, given["data"])
    except KeyboardInterrupt:
        done = f"{_count_finished(trials)} of {plan.trials} trials are done."
        raise KeyboardInterrupt(f"Interrupted. {done} To continue, repeat the command.") from None


def _count_finished(trials: TrialJobs) -> int:
    from itl.experiments.search.trials import FINISHED_STATES

    return len(trials.study.get_trials(deepcopy=False, states=FINISHED_STATES))


def _run_final(trials: TrialJobs, seeds: tuple[int, ...], given: dict[str, Any]) -> None:
    """Run the best settings on the test images."""
    from itl.experiments.search import study
    from itl.experiments.search.progress import FAILED, WAITING
    from itl.experiments.search.sweep import load_progress
    from itl.experiments.search.sweep_jobs import SweepJobs

    cells = SweepJobs(trials.out / "final", study.final_configs(trials, seeds))
    tracker = load_progress(cells)
    run_cells(cells, tracker, given, "best settings on the test images")
    if failed := tracker.in_state(FAILED):
        raise UserError(f"The run on the test images failed: {failed[0].error}")
    if waiting := tracker.in_state(WAITING):
        warn(f"Another process is working on {len(waiting)} of the runs on the test images.")


def _print_results(trials: TrialJobs, path: Path, seeds: tuple[int, ...] | None, given: dict[str, Any]) -> None:
    """Print the trials as a table, as JSON, or only the file with the best settings."""
    from itl.experiments.search import plots, study
    from itl.results import RunFolder

    best = study.best_trial(trials)
    assert best is not None
    plot_files = plots.draw(trials)
    final_configs = [] if seeds is None else study.final_configs(trials, seeds)
    runs = [trials.out / "final" / config.name for config in final_configs]
    results = [RunFolder(run).read("result.json") for run in runs if (run / "result.json").exists()]
    if given["quiet"]:
        echo(str(path))
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
