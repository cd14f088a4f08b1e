"""Runs that differ in nothing but their seed, and what they reach together: the one place that averages."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from itl.results.runs import Run

TASK_OPTIONS = ("tasks", "order", "order_seed")  # options of a run that change what its tasks are
GENERALIST = ("tangent", "projection")  # sections of a run's seconds


@dataclass(frozen=True)
class MeanStd:
    """A mean and the sample standard deviation over `count` runs; None where there is none."""

    mean: float | None
    std: float | None
    count: int

    @classmethod
    def of(cls, values: Sequence[float | None]) -> MeanStd:
        """Over what is there; a result may lack a number (one task has no forgetting)."""
        given = [value for value in values if value is not None]
        mean = statistics.fmean(given) if given else None
        return cls(mean, statistics.stdev(given) if len(given) > 1 else None, len(given))

    def text(self, digits: int = 2) -> str:
        """`66.05 ± 0.64`, or without what is not there; every table and every figure writes a mean like this."""
        if self.mean is None:
            return "–"
        return f"{self.mean:.{digits}f}" + ("" if self.std is None else f" ± {self.std:.{digits}f}")


@dataclass
class SeedGroup:
    """Runs of one method, variant, buffer, stream, split and choice of settings. Never two of one seed."""

    runs: list[Run] = field(default_factory=list)
    duplicates: list[Run] = field(default_factory=list)  # further runs of a seed it has already: told, not counted

    @property
    def metadata(self) -> dict[str, Any]:
        """What its runs share."""
        return self.runs[0].metadata

    @property
    def results(self) -> list[dict[str, Any]]:
        """The results, by seed."""
        return [run.result for run in self.runs if run.result is not None]

    @property
    def seeds(self) -> list[int]:
        """The seeds, ascending."""
        return [int(run.metadata["seed"]) for run in self.runs]

    def mean(self, name: str) -> MeanStd:
        """Of a number of the results, such as `class_il`."""
        return MeanStd.of([result.get(name) for result in self.results])

    def seconds(self) -> dict[str, float]:
        """Mean seconds of a run by section, `total` last."""
        every = [result["seconds"] for result in self.results]
        names = list(dict.fromkeys(name for one in every for name in one if name != "total"))
        return {name: statistics.fmean(one.get(name, 0.0) for one in every) for name in (*names, "total")}

    def generalist_share(self) -> float | None:
        """Tangent learning and projection as a share of the specialist's seconds."""
        seconds = self.seconds()
        specialist = seconds.get("specialist", 0.0)
        return sum(seconds.get(name, 0.0) for name in GENERALIST) / specialist if specialist else None

    @property
    def hardware(self) -> str:
        """What its runs ran on."""
        return "; ".join(dict.fromkeys(hardware(result["hardware"]) for result in self.results))

    @property
    def command(self) -> str:
        """The command line that repeats it, with all its seeds."""
        first = str(self.results[0]["command"])
        if len(self.runs) == 1:
            return first
        return re.sub(r"--seed \d+", f"--seeds {','.join(map(str, self.seeds))}", first, count=1)

    @property
    def custom_tasks(self) -> bool:
        """Whether the stream was cut into other tasks, or its classes taught in another order, than is usual."""
        return any(self.runs[0].config.get(name) is not None for name in TASK_OPTIONS)

    @property
    def own(self) -> str:
        """The settings that are the user's own, on top of the method's defaults, and how the stream was cut."""
        config = self.runs[0].config
        words = [f"{name}={value}" for name, value in (config.get("settings") or {}).items()]
        words += [f"{name}={config[name]}" for name in TASK_OPTIONS if config.get(name) is not None]
        return " ".join(words)


def hardware(metadata: Mapping[str, Any]) -> str:
    """A result's hardware in a few words."""
    if metadata.get("gpu"):
        return str(metadata["gpu"])
    threads = metadata.get("threads", "?")
    return f"{str(metadata.get('device', 'cpu')).upper()}, {threads} thread{'' if threads == 1 else 's'}"


def group_by_seed(runs: Sequence[Run]) -> list[SeedGroup]:
    """Finished runs by what they share; those of other settings are cells of their own."""
    out: list[SeedGroup] = []
    for run in sorted((run for run in runs if run.result is not None), key=lambda run: int(run.metadata["seed"])):
        home = next((cell for cell in out if all(_together(other, run) for other in cell.runs)), None)
        if home is None:
            out.append(SeedGroup([run]))
        else:
            (home.duplicates if run.metadata["seed"] in home.seeds else home.runs).append(run)
    return out


def _together(one: Run, other: Run) -> bool:
    """Whether two runs differ in their seeds alone."""
    names = ("stream", "split", "method", "variant", "buffer")
    if any(one.metadata.get(name) != other.metadata.get(name) for name in names):
        return False
    if any(one.config.get(name) != other.config.get(name) for name in TASK_OPTIONS):
        return False
    return agree(run_settings(one), run_settings(other), user_setting_names(one) | user_setting_names(other))


def agree(one: Mapping[str, Any], other: Mapping[str, Any], given: frozenset[str]) -> bool:
    """Whether settings agree. One that an older record does not know is passed over, unless a user has given it."""
    if (one.keys() ^ other.keys()) & given:
        return False
    return all(one[name] == other[name] for name in one.keys() & other.keys())


def run_settings(run: Run) -> dict[str, Any]:
    """All settings of a run, by dotted name."""
    return _flat((run.result or {}).get("settings") or run.config.get("resolved") or {})


def user_setting_names(run: Run) -> frozenset[str]:
    """The dotted names of the settings that are the user's own."""
    return frozenset(_flat(run.config.get("settings") or {}))


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, value in values.items():
        out |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return out
