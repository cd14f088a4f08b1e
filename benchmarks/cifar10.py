"""The paper's Seq-CIFAR-10: every run of its two tables and its ablation, in order of value. A GPU's work.

python benchmarks/cifar10.py --list                               what is not recorded yet, as commands
python benchmarks/cifar10.py --data data [--lanes 4]              do it, several runs side by side
python benchmarks/cifar10.py --only itl,itl-na --buffers 500      some methods, some sizes of memory
python benchmarks/cifar10.py --until 1500                         begin nothing that would end after so many seconds
python benchmarks/cifar10.py --until 1500 --first joint           its runs first: the longest must begin soon
python benchmarks/cifar10.py --only b --split validation          on the validation images

A run that is recorded is not run again, unless other settings were chosen for it since. A cell whose settings are still
to be chosen (benchmarks/candidates.py) has them chosen first, on the validation split: the record goes to
benchmarks/results, and its runs name the settings until they are the method's defaults. `itl table --stream
seq-cifar10` sets the records beside the paper's numbers.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

HOME = Path(__file__).parents[1]
sys.path[:0] = [str(HOME / "src"), str(HOME / "benchmarks")]

from candidates import CHOICES, OPEN  # noqa: E402
from choices import Choice, Choosing, Values  # noqa: E402
from jobs import Job, work_off  # noqa: E402
from runs import key, one, recorded  # noqa: E402

from itl import specialists  # noqa: E402
from itl.experiments.config import Config  # noqa: E402
from itl.presets import settings_for  # noqa: E402
from itl.settings import Settings, flatten  # noqa: E402

STREAM = "seq-cifar10"
RESULTS = HOME / "results" / STREAM
RECORDS = HOME / "benchmarks" / "results"
SEEDS = (0, 1, 2)
ITL = ("itl", "itl-na", "itl-l", "itl-l-na")
ABLATION = ("b", "b+ff", "b+lf", "b+hp+lf", "b+hp+ff+pd")
BASELINES = ("er", "derpp", "der", "joint", "sgd", "agem")
MEMORYLESS = ("sgd", "joint")  # one run of them does for every size of the memory
# Seconds of a run and of a redone generalist in one of four lanes, until one was measured.
RUN, TRY = 340.0, 9.0


def configs(split: str = "test") -> list[Config]:
    """All runs, the most valuable first."""
    return [item for item in order(split) if isinstance(item, Config)]


def order(split: str = "test") -> list[Config | Choice]:
    """All runs and choices, the most valuable first; a choice well before its runs, which wait for it."""

    def cells(methods: Sequence[str], buffer: int, seeds: Sequence[int] = SEEDS, **own: Any) -> list[Config]:
        """Seed by seed within a method."""
        some = [method for method in methods if buffer == 200 or method not in MEMORYLESS]
        return [Config(STREAM, method, buffer, seed, split=split, **own) for method in some for seed in seeds]

    def questions(seeds: Sequence[int]) -> list[Config]:
        return [c for name, own in OPEN.items() for c in cells(["itl"], 200, seeds, settings=own, variant=name)]

    few, many = ([choice for choice in CHOICES if choice.buffer == size and not choice.variant] for size in (500, 5120))
    past = [choice for choice in CHOICES if choice.variant]
    return [
        *cells(ITL, 200),
        *few,
        *past,
        *cells(ABLATION, 200),
        *many,
        *cells(ITL, 500),
        *questions(SEEDS[:1]),
        *cells(ITL, 5120),
        *(config for choice in past for config in cells(choice.methods, choice.buffer, variant=choice.variant)),
        *(config for size in (200, 500, 5120) for config in cells(BASELINES, size, SEEDS[:1])),
        *questions(SEEDS[1:]),
    ]


def place(config: Config) -> Path:
    """Where a run is recorded."""
    return RESULTS / config.split / config.name


def choosing(choice: Choice, data: str = "", device: str = "cpu") -> Choosing:
    """A choice's work, where its runs are."""
    return Choosing(choice, RESULTS / "validation", RECORDS, data, device)


class Plan:
    """The jobs that are left, with those that choose settings before the runs that need them."""

    def __init__(self, data: str, device: str) -> None:
        self.data, self.device = data, device
        self.jobs: dict[str, Job] = {}

    def add(self, config: Config) -> None:
        """One run, and before it the choice that it needs."""
        choice = chosen_by(config)
        self._put(config, partial(self.run, config), () if choice is None else self.choose(choice))

    def choose(self, choice: Choice) -> tuple[str, ...]:
        """The runs that keep specialists, the generalists from each, the choice; what its runs have to wait for."""
        made, name = choosing(choice, self.data, self.device), f"choice {choice.name}"
        if made.chosen() is not None:
            return ()
        every = choice.configs()
        tries = [f"tries {choice.name} {config.variant}" for config in every]
        seconds = TRY * len(choice.generalists) * len(choice.tasks)
        for config, title in zip(every, tries, strict=True):
            if made.all_kept(config):
                continue
            self._put(config, partial(self.keep_specialists, config))
            job = Job(title, partial(made.try_all, config), f"tries {choice.name}", seconds, (config.name,))
            self.jobs.setdefault(title, job)
        needs = tuple(title for title in tries if title in self.jobs)
        self.jobs.setdefault(name, Job(name, made.choose, "choice", needs=needs, late=True))
        return (name,)

    def run(self, config: Config) -> str:
        """With the settings chosen for it, unless it is recorded with these: they are chosen only now."""
        config, path = self.settled(config), place(config) / "result.json"
        if path.exists() and not outdated(config, json.loads(path.read_text())):
            return "is recorded with the settings chosen"
        return one(config, place(config), self.data, self.device)

    def settled(self, config: Config) -> Config:
        """A run with the settings chosen for it, named where they are not its method's own already."""
        choice = chosen_by(config)
        own = {**config.settings, **((choice and choosing(choice).chosen()) or {})}
        return replace(config, settings=own) if resolved(config, own) != resolved(config, config.settings) else config

    def keep_specialists(self, config: Config) -> str:
        """Specialists stay where they were trained: a record without them is made again."""
        shutil.rmtree(place(config), ignore_errors=True)
        return one(config, place(config), self.data, self.device)

    def _put(self, config: Config, work: Callable[[], str], needs: tuple[str, ...] = ()) -> None:
        many = ", many images" if config.buffer > 1000 else ""
        kind = "joint" if config.method == "joint" else f"{'logits' if stores_logits(config) else 'run'}{many}"
        slower = {"joint": 3.0, "logits": 1.3, "logits, many images": 1.6}  # joint: every task trains it on all so far
        guess = RUN * slower.get(kind, 1.0)
        self.jobs.setdefault(config.name, Job(config.name, work, kind, guess, needs))


def outdated(config: Config, record: Mapping[str, Any]) -> bool:
    """Whether a run was recorded with settings other than those chosen for it, or before they are chosen."""
    choice = chosen_by(config)
    if choice is None:
        return False
    chosen, had = choosing(choice).chosen(), flatten(record["settings"])
    return chosen is None or any(had.get(name) != value for name, value in chosen.items())


def stores_logits(config: Config) -> bool:
    """Whether a run's memory keeps logits, which a step takes one more batch for."""
    return specialists.build(resolved(config, config.settings).specialist).stores_logits


def chosen_by(config: Config) -> Choice | None:
    """What settles a run's settings, where they are not published."""
    return next((choice for choice in CHOICES if choice.covers(config)), None)


def resolved(config: Config, settings: Values) -> Settings:
    """All settings of a run that has these of its own."""
    return settings_for(config.method, config.stream, config.buffer, settings)


def asked_for(args: argparse.Namespace) -> list[Config]:
    """The runs that the options name and that are not recorded yet, or not with what was chosen for them."""
    only = args.only.split(",") if args.only else None
    buffers = [int(size) for size in args.buffers.split(",")] if args.buffers else None
    asked = [
        c
        for c in configs(args.split)
        if (only is None or c.method in only) and (buffers is None or c.buffer in buffers)
    ]
    done = recorded(RESULTS / args.split, args.split)
    return [c for c in asked if key(c) not in done or outdated(c, done[key(c)])]


def plan_of(todo: Sequence[Config], split: str, data: str, device: str, first: Sequence[str] = ()) -> Plan:
    """The jobs behind some runs, in order of value, those of the methods `first` before all others."""
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
    parser.add_argument("--only", help="methods, with commas between; default: all")
    parser.add_argument("--first", default="", help="methods to begin with, with commas between")
    parser.add_argument("--buffers", help="with commas between; default: all")
    parser.add_argument("--split", default="test", choices=("test", "validation"))
    parser.add_argument("--lanes", type=int, default=4)
    parser.add_argument("--until", type=float, default=float("inf"), metavar="SECONDS")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--data", default="data")
    parser.add_argument("--list", action="store_true", help="what is missing")
    return parser.parse_args(words)


def main() -> None:
    args = parse()
    todo = asked_for(args)
    print(f"{len(todo)} runs to do", flush=True)
    plan = plan_of(todo, args.split, args.data, args.device, args.first.split(","))
    if args.list:
        for config in sorted(todo, key=lambda config: list(plan.jobs).index(config.name)):
            waits = plan.jobs[config.name].needs
            print(f"{plan.settled(config).command}{'  # after: ' if waits else ''}{', '.join(waits)}")
        return
    board = work_off(list(plan.jobs.values()), args.lanes, args.device, args.until)
    print(f"{len(board.done)} done, {len(board.lost)} failed, {len(board.open)} left", flush=True)


if __name__ == "__main__":
    main()
