"""The paper's Seq-CIFAR-10: every run of its two tables and its ablation, the most valuable first. Needs a GPU.

python benchmarks/cifar10.py --list                               list what is not recorded yet, as commands
python benchmarks/cifar10.py --data data [--runs-per-gpu 4]       run it, several runs at once
python benchmarks/cifar10.py --only itl,itl-na --buffers 500      some methods, some buffer sizes
python benchmarks/cifar10.py --until 1500                         start nothing that would end after so many seconds
python benchmarks/cifar10.py --until 1500 --first joint           start with joint, whose runs take longest
python benchmarks/cifar10.py --only b --split validation          on the validation images

A recorded run is not repeated unless other settings were chosen for it since. If a cell's settings are still to be
chosen (benchmarks/candidates.py), they are chosen first, on the validation split. The record of the choice goes to
benchmarks/results/choices, and the runs name the chosen settings until these are the method's defaults. `itl table
--stream seq-cifar10` compares the records with the paper. `python benchmarks/pack.py results/seq-cifar10/test` packs
new run folders into the committed records.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

HOME = Path(__file__).parents[1]
sys.path[:0] = [str(HOME), str(HOME / "src")]

from benchmarks.candidates import CHOICES, OPEN_QUESTIONS  # noqa: E402
from benchmarks.choices import Choice, ChoiceRunner, SettingValues  # noqa: E402
from benchmarks.jobs import Job, run_jobs  # noqa: E402
from benchmarks.runs import key, recorded, result_at, run_and_record  # noqa: E402
from itl import specialists  # noqa: E402
from itl.experiments.config import Config  # noqa: E402
from itl.presets import settings_for  # noqa: E402
from itl.results.seed_groups import current_settings  # noqa: E402
from itl.settings import Settings  # noqa: E402

STREAM = "seq-cifar10"
RESULTS = HOME / "results" / STREAM
CHOICE_RECORDS = HOME / "benchmarks" / "results" / "choices"
SEEDS = (0, 1, 2)
ITL = ("itl", "itl-na", "itl-l", "itl-l-na")
ABLATION = ("b", "b+ff", "b+lf", "b+hp+lf", "b+hp+ff+pd")
BASELINES = ("er", "derpp", "der", "joint", "sgd", "agem")
WITHOUT_MEMORY = ("sgd", "joint")  # one run serves every buffer size
# Estimates for four runs at once, used until a run or a trial has been timed.
SECONDS_PER_RUN, SECONDS_PER_TRIAL = 340.0, 9.0


def configs(split: str = "test") -> list[Config]:
    """All runs, the most valuable first."""
    return [item for item in order(split) if isinstance(item, Config)]


def order(split: str = "test") -> list[Config | Choice]:
    """All runs and choices, the most valuable first; a choice comes well before the runs that wait for it."""

    def cells(methods: Sequence[str], buffer: int, seeds: Sequence[int] = SEEDS, **own: Any) -> list[Config]:
        needed = [method for method in methods if buffer == 200 or method not in WITHOUT_MEMORY]
        return [Config(STREAM, method, buffer, seed, split=split, **own) for method in needed for seed in seeds]

    def questions(seeds: Sequence[int]) -> list[Config]:
        return [
            c for name, own in OPEN_QUESTIONS.items() for c in cells(["itl"], 200, seeds, settings=own, variant=name)
        ]

    small, large = (
        [choice for choice in CHOICES if choice.buffer == size and not choice.variant] for size in (500, 5120)
    )
    beyond = [choice for choice in CHOICES if choice.variant]
    return [
        *cells(ITL, 200),
        *small,
        *beyond,
        *cells(ABLATION, 200),
        *large,
        *cells(ITL, 500),
        *questions(SEEDS[:1]),
        *cells(ITL, 5120),
        *(config for choice in beyond for config in cells(choice.methods, choice.buffer, variant=choice.variant)),
        *(config for size in (200, 500, 5120) for config in cells(BASELINES, size, SEEDS[:1])),
        *questions(SEEDS[1:]),
    ]


def folder_of(config: Config) -> Path:
    """The folder of a run's record."""
    return RESULTS / config.split / config.name


def choice_runner(choice: Choice, data: str = "", device: str = "cpu") -> ChoiceRunner:
    """Makes a choice from runs on the validation split."""
    return ChoiceRunner(choice, RESULTS / "validation", CHOICE_RECORDS, data, device)


class Plan:
    """The jobs that remain; those that choose settings come before the runs that need them."""

    def __init__(self, data: str, device: str) -> None:
        self.data, self.device = data, device
        self.jobs: dict[str, Job] = {}

    def add(self, config: Config) -> None:
        """Add a run, and before it the choice that it needs."""
        choice = choice_for(config)
        self._put(config, partial(self.run, config), () if choice is None else self.choose(choice))

    def choose(self, choice: Choice) -> tuple[str, ...]:
        """Add a choice: runs that keep specialists, trials from each, the choice. Returns what its runs wait for."""
        runner, name = choice_runner(choice, self.data, self.device), f"choice {choice.name}"
        if runner.chosen() is not None:
            return ()
        configs = choice.configs()
        trials = [f"tries {choice.name} {config.variant}" for config in configs]
        seconds = SECONDS_PER_TRIAL * len(choice.generalists) * len(choice.tasks)
        for config, title in zip(configs, trials, strict=True):
            if runner.has_all_trials(config):
                continue
            self._put(config, partial(self.keep_specialists, config))
            job = Job(title, partial(runner.try_all, config), f"tries {choice.name}", seconds, (config.name,))
            self.jobs.setdefault(title, job)
        needs = tuple(title for title in trials if title in self.jobs)
        self.jobs.setdefault(name, Job(name, runner.choose, "choice", needs=needs, instant=True))
        return (name,)

    def run(self, config: Config) -> str:
        """Do a run with the settings chosen for it, unless it is already recorded with these."""
        config = self.with_chosen_settings(config)
        result = result_at(folder_of(config))
        if result is not None and not outdated(config, result):
            return "already recorded with the chosen settings"
        return run_and_record(config, folder_of(config), self.data, self.device)

    def with_chosen_settings(self, config: Config) -> Config:
        """A run with the settings chosen for it, given explicitly where they are not the method's defaults."""
        choice = choice_for(config)
        chosen = {**config.settings, **((choice and choice_runner(choice).chosen()) or {})}
        same = resolved(config, chosen) == resolved(config, config.settings)
        return config if same else replace(config, settings=chosen)

    def keep_specialists(self, config: Config) -> str:
        """Do a run that keeps its specialists. Records do not include them, so a recorded run is repeated."""
        shutil.rmtree(folder_of(config), ignore_errors=True)
        return run_and_record(config, folder_of(config), self.data, self.device)

    def _put(self, config: Config, work: Callable[[], str], needs: tuple[str, ...] = ()) -> None:
        many = ", many images" if config.buffer > 1000 else ""
        kind = "joint" if config.method == "joint" else f"{'logits' if stores_logits(config) else 'run'}{many}"
        factors = {"joint": 3.0, "logits": 1.3, "logits, many images": 1.6}  # joint trains on all tasks so far
        estimate = SECONDS_PER_RUN * factors.get(kind, 1.0)
        self.jobs.setdefault(config.name, Job(config.name, work, kind, estimate, needs))


def outdated(config: Config, record: Mapping[str, Any]) -> bool:
    """Whether a run was recorded with settings other than those chosen for it, or before they were chosen."""
    choice = choice_for(config)
    if choice is None:
        return False
    chosen, recorded_settings = choice_runner(choice).chosen(), current_settings(record["settings"])
    return chosen is None or any(recorded_settings.get(name) != value for name, value in chosen.items())


def stores_logits(config: Config) -> bool:
    """Whether a run's memory keeps logits, for which a step draws one more batch."""
    return specialists.build(resolved(config, config.settings).specialist).stores_logits


def choice_for(config: Config) -> Choice | None:
    """The choice of a run's settings; None if they are published."""
    return next((choice for choice in CHOICES if choice.covers(config)), None)


def resolved(config: Config, settings: SettingValues) -> Settings:
    """All settings of a run, with `settings` on top of its method's defaults."""
    return settings_for(config.method, config.stream, config.buffer, settings)


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


def plan_for(todo: Sequence[Config], split: str, data: str, device: str, first: Sequence[str] = ()) -> Plan:
    """The jobs of some runs, the most valuable first, those of the methods `first` before all others."""
    plan = Plan(data, device)
    for item in sorted(order(split), key=lambda item: not (isinstance(item, Config) and item.method in first)):
        if isinstance(item, Config):
            if item in todo:
                plan.add(item)
        elif any(item.covers(config) for config in todo):
            plan.choose(item)
    return plan


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", help="methods, separated by commas; default: all")
    parser.add_argument("--first", default="", help="methods to start with, separated by commas")
    parser.add_argument("--buffers", help="buffer sizes, separated by commas; default: all")
    parser.add_argument("--split", default="test", choices=("test", "validation"))
    parser.add_argument("--runs-per-gpu", "--lanes", type=int, default=4, metavar="N", help="runs at once")
    parser.add_argument("--until", type=float, default=float("inf"), metavar="SECONDS", help="time limit")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--data", default="data")
    parser.add_argument("--list", action="store_true", help="list what is missing and stop")
    return parser.parse_args(words)


def main() -> None:
    args = parse()
    todo = runs_to_do(args)
    print(f"{len(todo)} runs to do", flush=True)
    plan = plan_for(todo, args.split, args.data, args.device, args.first.split(","))
    if args.list:
        for config in sorted(todo, key=lambda config: list(plan.jobs).index(config.name)):
            waits = plan.jobs[config.name].needs
            print(f"{plan.with_chosen_settings(config).command}{'  # after: ' if waits else ''}{', '.join(waits)}")
        return
    queue = run_jobs(list(plan.jobs.values()), args.runs_per_gpu, args.device, args.until)
    print(f"{len(queue.done)} done, {len(queue.failed)} failed, {len(queue.waiting)} left", flush=True)


if __name__ == "__main__":
    main()
