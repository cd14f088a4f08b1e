"""Whether tangent learning has converged: its budget is doubled, from kept specialists, on validation images.

python benchmarks/convergence.py --data data --runs-per-gpu 4                    itl and itl-l, every memory size
python benchmarks/convergence.py --data data --cells itl:500,itl-l:5120 --minutes 25
python benchmarks/convergence.py --report                                         the tables of what is recorded

Runs with the settings chosen for each cell (`benchmarks/cifar10.py`) keep their specialists. After tasks 1, 3 and 5 the
generalist is learned again with twice the budget: for L-BFGS twice the iterations and a tenth of the tolerance, for SGD
twice the epochs. The table has the change of Class-IL, and the expert minus the tangent model after every task. What is
recorded is not repeated.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

HOME = Path(__file__).parents[1]
sys.path[:0] = [str(HOME), str(HOME / "src")]

from benchmarks.choices import SettingValues  # noqa: E402
from benchmarks.cifar10 import PLAN  # noqa: E402
from benchmarks.plan import Plan  # noqa: E402
from benchmarks.runs import add_run_options, result_at, run_all  # noqa: E402
from itl.experiments.config import Config  # noqa: E402
from itl.experiments.search.local_backend import LocalBackend  # noqa: E402
from itl.experiments.search.time_limit import deadline_in  # noqa: E402
from itl.presets import settings_for  # noqa: E402
from itl.results import RunFolder  # noqa: E402
from itl.results.seed_groups import MeanStd  # noqa: E402
from itl.settings import parse  # noqa: E402

CELLS = tuple(f"{method}:{size}" for size in (200, 500, 5120) for method in ("itl", "itl-l"))
SEEDS = (0, 1, 2)
TASKS = (1, 3, 5)
VARIANT = "chosen"
TRIALS = "doubled.json"  # in the run's folder


def config_of(plan: Plan, cell: str, seed: int, **own: Any) -> Config:
    """The run on validation images of a cell, such as "itl:200", with the settings chosen for it."""
    method, size = cell.split(":")
    chosen = plan.with_chosen_settings(Config(plan.stream, method, int(size), seed)).settings
    kept = Config(plan.stream, method, int(size), seed, {**chosen, **own}, keep_specialists=True)
    return replace(kept, split="validation", variant=VARIANT)


def doubled(config: Config) -> SettingValues:
    """The settings that double the budget of tangent learning."""
    tangent = settings_for(config.method, config.stream, config.buffer, config.settings).tangent
    if tangent.solver == "sgd":
        return {"tangent.epochs": 2 * tangent.epochs}
    return {"tangent.iterations": 2 * tangent.iterations, "tangent.tolerance": tangent.tolerance / 10}


class Convergence:
    """The study of one plan's cells.

    Args:
        plan: The plan whose choices are examined.
        args: Options of the command line.
    """

    def __init__(self, plan: Plan, args: argparse.Namespace) -> None:
        self.plan, self.args, self.folder = plan, args, plan.results / "validation"
        own = parse(args.set)
        self.configs = {cell: [config_of(plan, cell, seed, **own) for seed in SEEDS] for cell in args.cells.split(",")}

    def run(self) -> None:
        """Do the missing runs, then learn from their specialists with twice the budget."""
        deadline = deadline_in(self.args.minutes)
        backend = LocalBackend(runs_per_gpu=self.args.runs_per_gpu, device=self.args.device, deadline=deadline)
        configs = [config for own in self.configs.values() for config in own]
        run_all([c for c in configs if result_at(self.folder / c.name) is None], self.folder, self.args.data, backend)
        work = [
            (config, task)
            for config in configs
            for task in TASKS
            if any((self.folder / config.name).glob("specialists/*")) and str(task) not in self.trials(config)
        ]
        self._double(work, deadline)

    def _double(self, work: Sequence[tuple[Config, int]], deadline: float | None) -> None:
        from itl.engine.concurrency import run_concurrently
        from itl.engine.device import choose_engine
        from itl.experiments.refine import refine_or_error

        def attempt(config: Config, task: int) -> None:
            if deadline is not None and time.time() > deadline:
                return
            folder = self.folder / config.name
            stream = config.load_stream(self.args.data)
            trial = refine_or_error(folder, stream, task, doubled(config), device=self.args.device)
            RunFolder(folder).write(TRIALS, {**self.trials(config), str(task): trial})
            print(f"{config.name}, task {task}: {trial.get('error') or trial['stages']}", flush=True)

        # One task of each run at a time, because a run's trials share a file.
        for task in TASKS:
            jobs = [partial(attempt, *pair) for pair in work if pair[1] == task]
            run_concurrently(jobs, self.args.runs_per_gpu, choose_engine(self.args.device).device)

    def trials(self, config: Config) -> dict[str, Any]:
        """The recorded trials of a run by task number."""
        folder = RunFolder(self.folder / config.name)
        return folder.read(TRIALS) if (folder.path / TRIALS).exists() else {}

    def records(self) -> list[dict[str, Any]]:
        """A line for each run that has all trials."""
        out = []
        for cell, configs in self.configs.items():
            for config in configs:
                result, trials = result_at(self.folder / config.name), self.trials(config)
                if result is not None and {str(task) for task in TASKS} <= trials.keys():
                    own = {name: result[name] for name in ("command", "hardware", "versions", "settings", "stages")}
                    out.append({"cell": cell, "seed": config.seed, **own, "doubled": trials})
        return out


def changes(record: dict[str, Any], stage: str) -> dict[int, float]:
    """Class-IL with twice the budget minus Class-IL, by task."""
    return {
        int(task): trial["stages"][stage]["class_il"] - record["stages"][int(task) - 1][stage]["class_il"]
        for task, trial in record["doubled"].items()
        if "stages" in trial
    }


def gain_of_projection(record: dict[str, Any], task: int) -> float:
    """Class-IL of the expert minus that of the tangent model."""
    stages = record["stages"][task - 1]
    return float(stages["expert"]["class_il"] - stages["tangent"]["class_il"])


def report(records: Sequence[dict[str, Any]]) -> str:
    """Tables in Markdown: what twice the budget changes, and what the projection changes."""
    lines = ["Class-IL with twice the budget of tangent learning, minus Class-IL; mean of the seeds:", ""]
    lines += [f"| cell | seeds | {' | '.join(f'task {task}' for task in TASKS)} | mean |", "|---|---|---|---|---|---|"]
    by_cell: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        by_cell.setdefault(record["cell"], []).append(record)
    for cell, own in by_cell.items():
        for stage in ("tangent", "expert"):
            by_task = {task: MeanStd.of([changes(r, stage)[task] for r in own]) for task in TASKS}
            mean = sum(value.mean or 0.0 for value in by_task.values()) / len(TASKS)
            cells = [f"{value.mean:+.2f}" for value in by_task.values()]
            lines.append(f"| `{cell}`, {stage} | {len(own)} | {' | '.join(cells)} | {mean:+.2f} |")
    lines += ["", "Class-IL of the expert minus that of the tangent model, mean of the seeds:", ""]
    tasks = range(1, 1 + max((len(r["stages"]) for r in records), default=0))
    lines += [f"| cell | {' | '.join(f'task {task}' for task in tasks)} |", "|---|" + "---|" * len(tasks)]
    for cell, own in by_cell.items():
        means = [MeanStd.of([gain_of_projection(record, task) for record in own]) for task in tasks]
        lines.append(f"| `{cell}` | {' | '.join(f'{value.mean:+.2f}' for value in means)} |")
    return "\n".join(lines)


def options(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", default=",".join(CELLS), help="METHOD:SIZE, separated by commas")
    parser.add_argument("--out", type=Path, default=HOME / "benchmarks" / "results" / "convergence")
    parser.add_argument("--set", action="append", default=[], help="KEY=VALUE for all runs, to check the script")
    parser.add_argument("--report", action="store_true", help="print the tables of what is recorded, run nothing")
    add_run_options(parser)
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None, plan: Plan = PLAN) -> None:
    args = options(words)
    path = args.out / "trials.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    records = {(r["cell"], r["seed"]): r for r in map(json.loads, lines)}
    if not args.report:
        study = Convergence(plan, args)
        study.run()
        records |= {(r["cell"], r["seed"]): r for r in study.records()}
        args.out.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(record) + "\n" for record in records.values()))
    print(report(list(records.values())))


if __name__ == "__main__":
    main()
