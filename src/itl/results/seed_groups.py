"""Groups of runs that differ only in their seed, and their means. All averages are computed here."""

from __future__ import annotations

import math
import re
import shlex
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from itl._deprecated import update_saved_settings
from itl.errors import UserError
from itl.presets import settings_for
from itl.results.runs import Run
from itl.settings import as_words, build, dotted, flatten

TASK_OPTIONS = ("tasks", "order", "order_seed")  # options that change the tasks of the stream
GENERALIST_SECTIONS = ("tangent", "projection")  # sections of a run's seconds


@dataclass(frozen=True)
class MeanStd:
    """Mean and sample standard deviation over `count` runs; None where they are not defined."""

    mean: float | None
    std: float | None
    count: int

    @classmethod
    def of(cls, values: Sequence[float | None]) -> MeanStd:
        """Mean and deviation of the values that are not None (with one task there is no forgetting)."""
        given = [value for value in values if value is not None]
        mean = statistics.fmean(given) if given else None
        return cls(mean, statistics.stdev(given) if len(given) > 1 else None, len(given))

    @property
    def interval(self) -> float | None:
        """Half the width of the mean's 95 % confidence interval (Student's t); None for a single run."""
        if self.std is None or self.count < 2:
            return None
        return t_quantile(self.count) * self.std / math.sqrt(self.count)

    def text(self, digits: int = 2) -> str:
        """`66.05 ± 0.64`; without the deviation for a single run, and a dash without a mean."""
        if self.mean is None:
            return "–"
        return f"{self.mean:.{digits}f}" + ("" if self.std is None else f" ± {self.std:.{digits}f}")


@cache
def t_quantile(count: int) -> float:
    """The 97.5 % quantile of Student's t for the mean of `count` values.

    By bisection of the distribution's finite sum for whole degrees of freedom, because SciPy is slow to import.
    """
    freedom = count - 1

    def within(angle: float) -> float:
        """P(|t| < sqrt(freedom) tan(angle))."""
        term = total = math.cos(angle) if freedom % 2 else 1.0
        for k in range(3 if freedom % 2 else 2, freedom, 2):
            term *= math.cos(angle) ** 2 * (k - 1) / k
            total += term
        if freedom % 2 == 0:
            return math.sin(angle) * total
        return 2 / math.pi * (angle + (math.sin(angle) * total if freedom > 1 else 0.0))

    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if within(middle) < 0.95 else (low, middle)
    return math.sqrt(freedom) * math.tan(low)


@dataclass
class SeedGroup:
    """Runs of one method, variant, buffer, stream, split and settings, one per seed."""

    runs: list[Run] = field(default_factory=list)
    # Further runs of a seed that is already included: listed, not averaged.
    duplicates: list[Run] = field(default_factory=list)

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata of the first run; all runs share it except for the seed."""
        return self.runs[0].metadata

    @property
    def results(self) -> list[dict[str, Any]]:
        """The results in order of seeds."""
        return [run.result for run in self.runs if run.result is not None]

    @property
    def seeds(self) -> list[int]:
        """The seeds in ascending order."""
        return [int(run.metadata["seed"]) for run in self.runs]

    def mean(self, name: str) -> MeanStd:
        """Mean and deviation of a number of the results, such as `class_il`."""
        return MeanStd.of([result.get(name) for result in self.results])

    def seconds(self) -> dict[str, float]:
        """Mean seconds of a run by section, `total` last."""
        seconds = [result["seconds"] for result in self.results]
        names = list(dict.fromkeys(name for run in seconds for name in run if name != "total"))
        return {name: statistics.fmean(run.get(name, 0.0) for run in seconds) for name in (*names, "total")}

    def generalist_share(self) -> float | None:
        """Seconds of tangent learning and projection divided by those of the specialist; None without a specialist."""
        seconds = self.seconds()
        specialist = seconds.get("specialist", 0.0)
        return sum(seconds.get(name, 0.0) for name in GENERALIST_SECTIONS) / specialist if specialist else None

    @property
    def hardware(self) -> str:
        """The hardware of the runs, in a few words."""
        return "; ".join(dict.fromkeys(hardware(result["hardware"]) for result in self.results))

    @property
    def command(self) -> str:
        """The command line that repeats the runs with all seeds, also if the method's defaults have changed since."""
        first = str(self.results[0]["command"])
        if len(self.runs) > 1:
            first = re.sub(r"--seed \d+", f"--seeds {','.join(map(str, self.seeds))}", first, count=1)
        return " ".join([first, *(f"--set {shlex.quote(word)}" for word in as_words(self.earlier_defaults))])

    @property
    def earlier_defaults(self) -> dict[str, Any]:
        """The settings of the runs whose defaults have changed since, by dotted name."""
        run = self.runs[0]
        given = current_settings(run.config.get("settings") or {})
        try:
            now = settings_for(run.metadata["method"], run.metadata["stream"], run.metadata["buffer"], given)
        except UserError:  # a method or setting that is not installed
            return {}
        recorded, first = run_settings(run), flatten(build({}).model_dump())
        if not recorded:
            return {}
        return {
            name: recorded.get(name, first[name])  # a setting that an older record lacks had its first value
            for name, value in flatten(now.model_dump()).items()
            if name in first and recorded.get(name, first[name]) != value
        }

    @property
    def custom_tasks(self) -> bool:
        """Whether the stream was divided into other tasks, or its classes ordered differently, than usual."""
        return any(self.runs[0].config.get(name) is not None for name in TASK_OPTIONS)

    @property
    def user_settings(self) -> str:
        """The settings that the user gave in addition to the method's defaults, and options that change the tasks."""
        config = self.runs[0].config
        words = [f"{name}={value}" for name, value in (config.get("settings") or {}).items()]
        words += [f"{name}={config[name]}" for name in TASK_OPTIONS if config.get(name) is not None]
        return " ".join(words)


def hardware(metadata: Mapping[str, Any]) -> str:
    """The hardware of a result in a few words."""
    if metadata.get("gpu"):
        return str(metadata["gpu"])
    threads = metadata.get("threads", "?")
    return f"{str(metadata.get('device', 'cpu')).upper()}, {threads} thread{'' if threads == 1 else 's'}"


def group_by_seed(runs: Sequence[Run]) -> list[SeedGroup]:
    """Group finished runs that differ only in their seed."""
    out: list[SeedGroup] = []
    for run in sorted((run for run in runs if run.result is not None), key=lambda run: int(run.metadata["seed"])):
        group = next((group for group in out if all(_differ_in_seed(other, run) for other in group.runs)), None)
        if group is None:
            out.append(SeedGroup([run]))
        else:
            (group.duplicates if run.metadata["seed"] in group.seeds else group.runs).append(run)
    return out


def _differ_in_seed(one: Run, other: Run) -> bool:
    """Whether two runs differ in their seeds only."""
    names = ("stream", "split", "method", "variant", "buffer")
    if any(one.metadata.get(name) != other.metadata.get(name) for name in names):
        return False
    if any(one.config.get(name) != other.config.get(name) for name in TASK_OPTIONS):
        return False
    return agree(run_settings(one), run_settings(other), user_setting_names(one) | user_setting_names(other))


def agree(one: Mapping[str, Any], other: Mapping[str, Any], given: frozenset[str]) -> bool:
    """Whether settings agree. A setting that an older record lacks is ignored unless a user gave it."""
    if (one.keys() ^ other.keys()) & given:
        return False
    return all(one[name] == other[name] for name in one.keys() & other.keys())


def run_settings(run: Run) -> dict[str, Any]:
    """All settings of a run by dotted name."""
    return current_settings((run.result or {}).get("settings") or run.config.get("resolved") or {})


def user_setting_names(run: Run) -> frozenset[str]:
    """The dotted names of the settings that the user gave."""
    return frozenset(current_settings(run.config.get("settings") or {}))


def current_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Recorded settings by dotted name, with renamed settings and values under their current names."""
    current = update_saved_settings(dotted(settings))
    if "memory.weights" not in current and current.get("memory.logits") is False:
        current["memory.logits"] = None  # the default was false before it was null, with the same meaning
    return current
