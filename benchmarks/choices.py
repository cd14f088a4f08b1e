"""How settings are chosen on the validation split, for one method and one size of memory.

Specialists are trained once, by whole runs that keep them; from each of them many generalists are learned anew (`itl
refine`), after the last task, the first and the middle one. What is chosen has the highest mean over these of Class-IL
+ Task-IL / 2. A generalist that diverges, or is three points behind the best after one task, is not tried after the
others.
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

Values = dict[str, Any]
Try = dict[str, Any]
BEHIND = 3.0


@dataclass(frozen=True)
class Choice:
    """What is tried for `methods` at `buffer`: the first of them is the one tried, all take what is chosen.

    `specialists` are settings by the variant's name of the run that trains them, `along` those of that run's own
    generalist. A choice under a `variant` is none of the paper's cells; its generalists need not be tangent.
    """

    methods: tuple[str, ...]
    buffer: int
    specialists: Mapping[str, Values]
    generalists: Sequence[Values] = field(repr=False)
    along: Values
    variant: str | None = None
    stream: str = "seq-cifar10"
    tasks: tuple[int, ...] = (5, 1, 3)

    @property
    def name(self) -> str:
        """Of its record."""
        return "-".join([self.methods[0], *([self.variant] if self.variant else []), str(self.buffer)])

    def covers(self, config: Config) -> bool:
        """Whether a run takes what is chosen here."""
        mine = (self.stream, self.buffer, self.variant, "test")
        return mine == (config.stream, config.buffer, config.variant, config.split) and config.method in self.methods

    def configs(self) -> list[Config]:
        """The runs that keep the specialists."""
        return [
            Config(
                self.stream,
                self.methods[0],
                self.buffer,
                settings={**settings, **self.along},
                variant=name,
                split="validation",
                keep_specialists=True,
            )
            for name, settings in self.specialists.items()
        ]


def score(one: Try) -> float:
    """What generalists are compared by, after one task."""
    expert = one["stages"]["expert"]
    return float(expert["class_il"] + expert["task_il"] / 2)


def redo(choice: Choice, redone: Callable[[int, Values], Try]) -> Iterator[list[Try]]:
    """Try every generalist from one run's specialists: all tries so far, whenever a task's are done."""
    tries: list[Try] = []
    left = list(choice.generalists)
    for task in choice.tasks:
        mine = [redone(task, settings) for settings in left]
        best = max((score(one) for one in mine if "stages" in one), default=0.0)
        left = [one["settings"] for one in mine if "stages" in one and score(one) > best - BEHIND]
        tries = [*tries, *mine]
        yield tries


def best(choice: Choice, found: Mapping[str, Sequence[Try]]) -> Values:
    """The chosen settings, and their score, among tries by run: of those tried after every task."""
    candidates: list[tuple[float, Values]] = []
    for config in choice.configs():
        tries = [one for one in found.get(config.name, ()) if "stages" in one]
        for settings in choice.generalists:
            scores = {one["task"]: score(one) for one in tries if one["settings"] == settings}
            if scores.keys() >= set(choice.tasks):
                mean = sum(scores[task] for task in choice.tasks) / len(choice.tasks)
                candidates.append((mean, {**choice.specialists[str(config.variant)], **settings}))
    if not candidates:
        raise ValueError(f"no generalist of {choice.name} was finite after tasks {choice.tasks}")
    mean, settings = max(candidates, key=lambda one: one[0])
    return {"score": mean, "settings": settings}


class Choosing:
    """A choice's work: tries beside the kept specialists, then the record of all of them with what was chosen."""

    def __init__(self, choice: Choice, runs: Path, records: Path, data: str, device: str) -> None:
        self.choice, self.runs, self.data, self.device = choice, runs, data, device
        self.record = records / f"cifar10-choice-{choice.name}.json"

    def chosen(self) -> Values | None:
        """The settings, once they are chosen."""
        return json.loads(self.record.read_text())["chosen"]["settings"] if self.record.exists() else None

    def kept(self, config: Config) -> tuple[RunFolder, str]:
        """Where the tries from one run's specialists are kept until the choice is made: folder and file."""
        return RunFolder(self.runs / config.name), f"tries-{self.choice.name}.json"

    def all_kept(self, config: Config) -> bool:
        """Whether all tries from one run's specialists are kept: neither they nor the run are needed again."""
        folder, name = self.kept(config)
        if not (folder.path / name).exists():
            return False
        return {one["task"] for one in folder.read(name)["tries"]} == set(self.choice.tasks)

    def try_all(self, config: Config) -> str:
        """From the specialists of one run."""
        from itl.experiments.refine import tried

        stream, (folder, name) = config.load_stream(self.data), self.kept(config)
        redone = partial(tried, self.runs / config.name, stream, device=self.device)
        tries: list[Try] = []
        for tries in redo(self.choice, redone):
            folder.write(name, {"format": 1, "tries": tries})
        return f"{len(tries)} generalists tried"

    def choose(self) -> str:
        """Of all that was tried, and record it."""
        configs = self.choice.configs()
        found = {}
        for config in configs:
            folder, name = self.kept(config)
            found[config.name] = folder.read(name)["tries"]
        hardware = RunFolder(self.runs / configs[0].name).read("result.json")["hardware"]
        chosen, about = best(self.choice, found), " ".join((__doc__ or "").split())
        RunFolder(self.record.parent).write(
            self.record.name,
            {
                "format": 1,
                "about": f"{', '.join(self.choice.methods)} with {self.choice.buffer} images. {about}",
                "hardware": hardware.get("gpu") or "CPU",
                "from": found,
                "chosen": chosen,
            },
        )
        return f"{chosen['score']:.1f} by {chosen['settings']}"
