"""A plan of runs on one stream: chooses settings on the validation split, then does the runs in order.

A recorded run is not repeated unless other settings were chosen for it since, and the same command continues an
interrupted session. If a run's settings are still to be chosen (`benchmarks.choices`), they are chosen first. The
record of the choice is a line of `benchmarks/results/choices`, and the runs name the chosen settings until these are
the method's defaults.
"""

from __future__ import annotations

import argparse
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.choices import Choice, ChoiceRunner, SettingValues
from benchmarks.runs import add_run_options, key, recorded, run_all
from itl.experiments.config import Config
from itl.experiments.search.local_backend import LocalBackend
from itl.experiments.search.sweep import Backend
from itl.experiments.search.time_limit import deadline_in
from itl.presets import settings_for
from itl.results.seed_groups import current_settings

HOME = Path(__file__).parents[1]


@dataclass
class Plan:
    """The runs of one stream.

    Attributes:
        stream: Name of the stream.
        configs: Returns all runs on a split, the most valuable first.
        choices: The choices that these runs need.
        results: Folder of the records, with a folder for each split.
        choice_records: File of the choices.
    """

    stream: str
    configs: Callable[[str], list[Config]]
    choices: Sequence[Choice]
    results: Path
    choice_records: Path

    @classmethod
    def of(cls, stream: str, configs: Callable[[str], list[Config]], choices: Sequence[Choice]) -> Plan:
        """A plan whose records are in the repository."""
        choice_records = HOME / "benchmarks" / "results" / "choices" / "choices.jsonl"
        return cls(stream, configs, choices, HOME / "results" / stream, choice_records)

    def runner(self, choice: Choice, data: str = "", device: str = "cpu") -> ChoiceRunner:
        """The runner that makes a choice from runs on the validation split."""
        return ChoiceRunner(choice, self.results / "validation", self.choice_records, data, device)

    def choice_for(self, config: Config) -> Choice | None:
        """The choice of a run's settings; None if they are published."""
        return next((choice for choice in self.choices if choice.covers(config)), None)

    def with_chosen_settings(self, config: Config) -> Config:
        """A run with the settings chosen for it, given explicitly where they are not the method's defaults."""

        def resolved(settings: SettingValues) -> Any:
            return settings_for(config.method, config.stream, config.buffer, settings)

        choice = self.choice_for(config)
        chosen = {**config.settings, **((choice and self.runner(choice).chosen()) or {})}
        return config if resolved(chosen) == resolved(config.settings) else replace(config, settings=chosen)

    def outdated(self, config: Config, record: Mapping[str, Any]) -> bool:
        """Whether a run was recorded with settings other than those chosen for it, or before they were chosen."""
        choice = self.choice_for(config)
        if choice is None:
            return False
        chosen, recorded_settings = self.runner(choice).chosen(), current_settings(record["settings"])
        return chosen is None or any(recorded_settings.get(name) != value for name, value in chosen.items())

    def runs_to_do(self, args: argparse.Namespace) -> list[Config]:
        """The runs that the options select and that are not recorded yet, or not with the settings chosen for them."""
        only = args.only.split(",") if args.only else None
        buffers = [int(size) for size in args.buffers.split(",")] if args.buffers else None
        seeds = [int(seed) for seed in args.seeds.split(",")] if args.seeds else None
        selected = [
            c
            for c in self.configs(args.split)
            if (only is None or c.method in only)
            and (buffers is None or c.buffer in buffers)
            and (seeds is None or c.seed in seeds)
        ]
        return self.missing(selected, args.split)

    def missing(self, configs: Sequence[Config], split: str) -> list[Config]:
        """Those of some runs that are not recorded, or not with the settings chosen for them."""
        done = recorded(self.results / split, split)
        return [config for config in configs if key(config) not in done or self.outdated(config, done[key(config)])]

    def do_runs(self, todo: Sequence[Config], args: argparse.Namespace, backend: Backend) -> None:
        """Choose the settings that are still to be chosen for these runs, then do the runs."""
        open_choices = [
            runner
            for choice in self.choices
            if any(choice.covers(config) for config in todo)
            and (runner := self.runner(choice, args.data, args.device)).chosen() is None
        ]
        make_choices(open_choices, backend, args.runs_per_gpu)
        undecided = [runner.choice for runner in open_choices if runner.chosen() is None]
        if args.choose_only:
            return
        decided = [config for config in todo if not any(choice.covers(config) for choice in undecided)]
        todo = self.missing(decided, args.split)  # a new search may have chosen the settings of recorded runs
        folder = self.results / args.split
        for config in todo:
            if (folder / config.name / "result.json").exists():  # with other settings than those chosen
                shutil.rmtree(folder / config.name)
        run_all([self.with_chosen_settings(config) for config in todo], folder, args.data, backend)

    def main(self, words: Sequence[str] | None = None) -> None:
        """The command line of the plan's script."""
        args = parse(words)
        todo = self.runs_to_do(args)
        print(f"{len(todo)} runs to do", flush=True)
        if args.list:
            for config in todo:
                print(self.with_chosen_settings(config).command)
        else:
            backend = LocalBackend(
                runs_per_gpu=args.runs_per_gpu, device=args.device, deadline=deadline_in(args.minutes)
            )
            self.do_runs(todo, args, backend)


def make_choices(runners: Sequence[ChoiceRunner], backend: Backend, at_once: int = 1) -> None:
    """Choose settings: do the runs that keep specialists, try every generalist from each of them, choose the best.

    If the time limit ends the runs of a choice, it is not made yet.

    Args:
        runners: The choices to make; the runs of all of them are done together.
        backend: Does the runs.
        at_once: Runs from whose specialists generalists are tried at the same time on one GPU.
    """
    missing = {
        runner: [config for config in runner.choice.configs() if not runner.has_all_trials(config)]
        for runner in runners
    }
    for runner, configs in missing.items():
        for config in configs:
            folder = runner.runs / config.name
            if (folder / "result.json").exists() and not any(folder.glob("specialists/*")):  # it cannot be used
                shutil.rmtree(folder)
    if runners:
        to_do = [config for configs in missing.values() for config in configs]
        run_all(to_do, runners[0].runs, runners[0].data, backend)
    _try_generalists(
        [
            (runner, config)
            for runner, configs in missing.items()
            for config in configs
            if (runner.runs / config.name / "result.json").exists()
        ],
        at_once,
        getattr(backend, "deadline", None),
    )
    for runner in runners:
        if all(runner.has_all_trials(config) for config in runner.choice.configs()):
            print(f"choice {runner.choice.name}: {runner.choose()}", flush=True)


def _try_generalists(work: Sequence[tuple[ChoiceRunner, Config]], at_once: int, deadline: float | None) -> None:
    """Try the generalists from the specialists of several runs; none is started after the deadline."""
    from itl.engine.concurrency import run_concurrently
    from itl.engine.device import choose_engine

    def attempt(runner: ChoiceRunner, config: Config) -> None:
        if deadline is None or time.time() < deadline:
            print(f"{config.name}: {runner.try_all(config)}", flush=True)

    if work:
        device = choose_engine(work[0][0].device).device
        run_concurrently([partial(attempt, *pair) for pair in work], at_once, device)


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of a plan's script."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", help="methods, separated by commas; default: all")
    parser.add_argument("--buffers", help="buffer sizes, separated by commas; default: all")
    parser.add_argument("--seeds", help="seeds, separated by commas; default: all")
    parser.add_argument("--split", default="test", choices=("test", "validation"))
    add_run_options(parser)
    parser.add_argument("--choose-only", action="store_true", help="make the choices and stop")
    return parser.parse_args(words)
