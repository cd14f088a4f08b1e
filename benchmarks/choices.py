"""How settings are chosen on the validation split, for one method and one buffer size.

Full runs train and keep the specialists once. From each of them several generalists are learned again (`itl refine`),
after the last, the first and the middle task. The settings with the highest mean of Class-IL + Task-IL / 2 over these
tasks are chosen. A generalist that diverges, or is three points behind the best after one task, is not tried after the
other tasks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from itl.experiments.config import Config
from itl.results import RunFolder

SettingValues = dict[str, Any]
Trial = dict[str, Any]  # task, settings, and stages (or error, if the generalist diverged)
MAX_POINTS_BEHIND = 3.0


@dataclass(frozen=True)
class Choice:
    """What is tried for `methods` at one buffer size. The first method is tried; all of them use what is chosen.

    `specialists` holds settings by the variant name of the run that trains them, `run_generalist` the generalist
    settings of these runs. A choice with a `variant` is not a cell of the paper; its generalists need not be tangent.
    A later `search` replaces an earlier choice for the same runs, whose record stays.
    """

    methods: tuple[str, ...]
    buffer: int
    specialists: Mapping[str, SettingValues]
    generalists: Sequence[SettingValues] = field(repr=False)
    run_generalist: SettingValues
    variant: str | None = None
    stream: str = "seq-cifar10"
    tasks: tuple[int, ...] = (5, 1, 3)
    search: str | None = None

    @property
    def name(self) -> str:
        """The name of its record; without the stream for Seq-CIFAR-10."""
        stream = None if self.stream == "seq-cifar10" else self.stream
        parts = (stream, self.methods[0], self.variant, str(self.buffer), self.search)
        return "-".join(part for part in parts if part)

    def covers(self, config: Config) -> bool:
        """Whether a run uses the settings chosen here."""
        own = (self.stream, self.buffer, self.variant, "test")
        return own == (config.stream, config.buffer, config.variant, config.split) and config.method in self.methods

    def configs(self) -> list[Config]:
        """The runs that train and keep the specialists."""
        return [
            Config(
                self.stream,
                self.methods[0],
                self.buffer,
                settings={**settings, **self.run_generalist},
                variant=name,
                split="validation",
                keep_specialists=True,
            )
            for name, settings in self.specialists.items()
        ]


def score(trial: Trial) -> float:
    """Class-IL + Task-IL / 2 of the expert: what generalists are compared by after one task."""
    expert = trial["stages"]["expert"]
    return float(expert["class_il"] + expert["task_il"] / 2)


def try_generalists(choice: Choice, refine: Callable[[int, SettingValues], Trial]) -> Iterator[list[Trial]]:
    """Try every generalist from the specialists of one run. Yields all trials so far after each task."""
    trials: list[Trial] = []
    remaining = list(choice.generalists)
    for task in choice.tasks:
        new = [refine(task, settings) for settings in remaining]
        best = max((score(trial) for trial in new if "stages" in trial), default=0.0)
        remaining = [t["settings"] for t in new if "stages" in t and score(t) > best - MAX_POINTS_BEHIND]
        trials = [*trials, *new]
        yield trials


def best_settings(choice: Choice, trials_by_run: Mapping[str, Sequence[Trial]]) -> SettingValues:
    """The chosen settings and their score, among the generalists that were tried after every task."""
    candidates: list[tuple[float, SettingValues]] = []
    for config in choice.configs():
        trials = [trial for trial in trials_by_run.get(config.name, ()) if "stages" in trial]
        for settings in choice.generalists:
            scores = {trial["task"]: score(trial) for trial in trials if trial["settings"] == settings}
            if scores.keys() >= set(choice.tasks):
                mean = sum(scores[task] for task in choice.tasks) / len(choice.tasks)
                candidates.append((mean, {**choice.specialists[str(config.variant)], **settings}))
    if not candidates:
        raise ValueError(f"no generalist of {choice.name} was finite after tasks {choice.tasks}")
    mean, settings = max(candidates, key=lambda candidate: candidate[0])
    return {"score": mean, "settings": settings}


def recorded_choices(records: Path) -> dict[str, dict[str, Any]]:
    """The lines of `records` by their `name`; the last one counts."""
    lines = records.read_text().splitlines() if records.exists() else []
    return {record["name"]: record for record in map(json.loads, lines)}


class ChoiceRunner:
    """Makes one choice: trials from the specialists in the run folders `runs`, the outcome as a line of `records`."""

    def __init__(self, choice: Choice, runs: Path, records: Path, data: str, device: str) -> None:
        self.choice, self.runs, self.records, self.data, self.device = choice, runs, records, data, device

    def chosen(self) -> SettingValues | None:
        """The chosen settings; None while nothing is chosen."""
        return recorded_choices(self.records).get(self.choice.name, {}).get("chosen", {}).get("settings")

    def trials_file(self, config: Config) -> tuple[RunFolder, str]:
        """Folder and file of the trials from one run's specialists, until the choice is made."""
        return RunFolder(self.runs / config.name), f"tries-{self.choice.name}.json"

    def has_all_trials(self, config: Config) -> bool:
        """Whether all trials from one run's specialists are recorded, so that the run is not needed again."""
        folder, name = self.trials_file(config)
        if not (folder.path / name).exists():
            return False
        return {trial["task"] for trial in folder.read(name)["tries"]} == set(self.choice.tasks)

    def try_all(self, config: Config) -> str:
        """Try every generalist from the specialists of one run."""
        from itl.experiments.refine import refine_or_error

        stream, (folder, name) = config.load_stream(self.data), self.trials_file(config)
        refine = partial(refine_or_error, self.runs / config.name, stream, device=self.device)
        trials: list[Trial] = []
        for trials in try_generalists(self.choice, refine):
            folder.write(name, {"format": 1, "tries": trials})
        return f"{len(trials)} generalists tried"

    def choose(self) -> str:
        """Choose the best of all trials and record it."""
        configs = self.choice.configs()
        trials_by_run = {}
        for config in configs:
            folder, name = self.trials_file(config)
            trials_by_run[config.name] = folder.read(name)["tries"]
        hardware = RunFolder(self.runs / configs[0].name).read("result.json")["hardware"]
        chosen, about = best_settings(self.choice, trials_by_run), " ".join((__doc__ or "").split())
        record = {
            "name": self.choice.name,
            "format": 1,
            "about": f"{', '.join(self.choice.methods)} with {self.choice.buffer} images. {about}",
            "hardware": hardware.get("gpu") or "CPU",
            "from": trials_by_run,
            "chosen": chosen,
        }
        with self.records.open("a") as out:
            out.write(json.dumps(record, separators=(",", ":")) + "\n")
        return f"{chosen['score']:.1f} by {chosen['settings']}"
