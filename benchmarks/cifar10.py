"""The paper's Seq-CIFAR-10: every run of its two tables and its ablation, the most valuable first. Needs a GPU.

python benchmarks/cifar10.py --list                               list what is not recorded yet, as commands
python benchmarks/cifar10.py --data data [--runs-per-gpu 4]       run it, several runs at once
python benchmarks/cifar10.py --only itl,itl-na --buffers 500      some methods, some buffer sizes
python benchmarks/cifar10.py --only b --split validation          on the validation images
python benchmarks/cifar10.py --minutes 25                         stop in time; repeat the command to continue

A recorded run is not repeated unless other settings were chosen for it since, and the same command continues an
interrupted session. If a cell's settings are still to be chosen (benchmarks/candidates.py), they are chosen first, on
the validation split. The record of the choice goes to benchmarks/results/choices, and the runs name the chosen settings
until these are the method's defaults. `itl table --stream seq-cifar10` compares the records with the paper. `python
benchmarks/pack.py results/seq-cifar10/test` packs new run folders into the committed records.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

HOME = Path(__file__).parents[1]
sys.path[:0] = [str(HOME), str(HOME / "src")]

from benchmarks.candidates import CHOICES, OPEN_QUESTIONS  # noqa: E402
from benchmarks.choices import Choice, ChoiceRunner, SettingValues  # noqa: E402
from benchmarks.runs import key, recorded, run_all  # noqa: E402
from itl.experiments.config import Config  # noqa: E402
from itl.experiments.search.local_backend import LocalBackend  # noqa: E402
from itl.experiments.search.sweep import Backend  # noqa: E402
from itl.experiments.search.time_limit import deadline_in  # noqa: E402
from itl.presets import settings_for  # noqa: E402
from itl.results.seed_groups import current_settings  # noqa: E402

STREAM = "seq-cifar10"
RESULTS = HOME / "results" / STREAM
CHOICE_RECORDS = HOME / "benchmarks" / "results" / "choices" / "choices.jsonl"
SEEDS = (0, 1, 2)
ITL = ("itl", "itl-na", "itl-l", "itl-l-na")
ABLATION = ("b", "b+ff", "b+lf", "b+hp+lf", "b+hp+ff+pd")
BASELINES = ("er", "derpp", "der", "joint", "sgd", "agem")
WITHOUT_MEMORY = ("sgd", "joint")  # one run serves every buffer size


def configs(split: str = "test") -> list[Config]:
    """All runs, the most valuable first."""

    def cells(methods: Sequence[str], buffer: int, seeds: Sequence[int] = SEEDS, **own: Any) -> list[Config]:
        needed = [method for method in methods if buffer == 200 or method not in WITHOUT_MEMORY]
        return [Config(STREAM, method, buffer, seed, split=split, **own) for method in needed for seed in seeds]

    def questions(seeds: Sequence[int]) -> list[Config]:
        return [
            c for name, own in OPEN_QUESTIONS.items() for c in cells(["itl"], 200, seeds, settings=own, variant=name)
        ]

    beyond = [choice for choice in CHOICES if choice.variant]
    return [
        *cells(ITL, 200),
        *cells(ABLATION, 200),
        *cells(ITL, 500),
        *questions(SEEDS[:1]),
        *cells(ITL, 5120),
        *(config for choice in beyond for config in cells(choice.methods, choice.buffer, variant=choice.variant)),
        *(config for size in (200, 500, 5120) for config in cells(BASELINES, size, SEEDS[:1])),
        *questions(SEEDS[1:]),
    ]


def choice_runner(choice: Choice, data: str = "", device: str = "cpu") -> ChoiceRunner:
    """Makes a choice from runs on the validation split."""
    return ChoiceRunner(choice, RESULTS / "validation", CHOICE_RECORDS, data, device)


def choice_for(config: Config) -> Choice | None:
    """The choice of a run's settings; None if they are published."""
    return next((choice for choice in CHOICES if choice.covers(config)), None)


def make_choice(runner: ChoiceRunner, backend: Backend) -> None:
    """Choose settings: run what keeps specialists, try every generalist from each of them, choose the best.

    If the time limit ends the runs, nothing is chosen yet. Trials take minutes and have no time limit.
    """
    missing = [config for config in runner.choice.configs() if not runner.has_all_trials(config)]
    for config in missing:
        folder = runner.runs / config.name
        if (folder / "result.json").exists() and not any(folder.glob("specialists/*")):  # a record alone is of no use
            shutil.rmtree(folder)
    run_all(missing, runner.runs, runner.data, backend)
    if not all((runner.runs / config.name / "result.json").exists() for config in missing):
        return
    for config in missing:
        print(f"{config.name}: {runner.try_all(config)}", flush=True)
    print(f"choice {runner.choice.name}: {runner.choose()}", flush=True)


def with_chosen_settings(config: Config) -> Config:
    """A run with the settings chosen for it, given explicitly where they are not the method's defaults."""

    def resolved(settings: SettingValues) -> Any:
        return settings_for(config.method, config.stream, config.buffer, settings)

    choice = choice_for(config)
    chosen = {**config.settings, **((choice and choice_runner(choice).chosen()) or {})}
    return config if resolved(chosen) == resolved(config.settings) else replace(config, settings=chosen)


def outdated(config: Config, record: Mapping[str, Any]) -> bool:
    """Whether a run was recorded with settings other than those chosen for it, or before they were chosen."""
    choice = choice_for(config)
    if choice is None:
        return False
    chosen, recorded_settings = choice_runner(choice).chosen(), current_settings(record["settings"])
    return chosen is None or any(recorded_settings.get(name) != value for name, value in chosen.items())


def runs_to_do(args: argparse.Namespace) -> list[Config]:
    """The runs that the options select and that are not recorded yet, or not with the settings chosen for them."""
    only = args.only.split(",") if args.only else None
    buffers = [int(size) for size in args.buffers.split(",")] if args.buffers else None
    selected = [
        c
        for c in configs(args.split)
        if (only is None or c.method in only) and (buffers is None or c.buffer in buffers)
    ]
    done = recorded(RESULTS / args.split, args.split)
    return [c for c in selected if key(c) not in done or outdated(c, done[key(c)])]


def do_runs(todo: Sequence[Config], args: argparse.Namespace, backend: Backend) -> None:
    """Choose the settings that are still to be chosen for these runs, then do the runs."""
    for choice in CHOICES:
        runner = choice_runner(choice, args.data, args.device)
        if any(choice.covers(config) for config in todo) and runner.chosen() is None:
            make_choice(runner, backend)
            if runner.chosen() is None:
                todo = [config for config in todo if not choice.covers(config)]
    folder = RESULTS / args.split
    for config in todo:
        if (folder / config.name / "result.json").exists():  # with other settings than those chosen
            shutil.rmtree(folder / config.name)
    run_all([with_chosen_settings(config) for config in todo], folder, args.data, backend)


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", help="methods, separated by commas; default: all")
    parser.add_argument("--buffers", help="buffer sizes, separated by commas; default: all")
    parser.add_argument("--split", default="test", choices=("test", "validation"))
    parser.add_argument("--runs-per-gpu", "--lanes", type=int, default=4, metavar="N", help="runs at once")
    parser.add_argument("--minutes", type=float, metavar="N", help="stop at checkpoints before so many minutes")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--data", default="data")
    parser.add_argument("--list", action="store_true", help="list what is missing and stop")
    return parser.parse_args(words)


def main() -> None:
    args = parse()
    todo = runs_to_do(args)
    print(f"{len(todo)} runs to do", flush=True)
    if args.list:
        for config in todo:
            print(with_chosen_settings(config).command)
    else:
        deadline = deadline_in(args.minutes)
        do_runs(todo, args, LocalBackend(runs_per_gpu=args.runs_per_gpu, device=args.device, deadline=deadline))


if __name__ == "__main__":
    main()
