"""Where a search looks: settings by range or by choices, and the paper's own space by name."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from itl.errors import UserError, unknown
from itl.settings import Settings, check_name, parse

if TYPE_CHECKING:
    from optuna.trial import Trial

MOST = 10_000  # points of a grid


@dataclass(frozen=True)
class Choice:
    """One setting: some values, or a range of numbers (`log`: even in the logarithm)."""

    key: str
    values: Sequence[Any] | None = None
    low: float | None = None
    high: float | None = None
    log: bool = False

    def suggest(self, trial: Trial) -> Any:
        """A value for a trial; one that it has already stays."""
        if self.values is not None:
            return trial.suggest_categorical(self.key, list(self.values))
        assert self.low is not None
        assert self.high is not None
        if isinstance(self.low, int) and isinstance(self.high, int):
            return trial.suggest_int(self.key, self.low, self.high, log=self.log)
        return trial.suggest_float(self.key, float(self.low), float(self.high), log=self.log)

    def ends(self) -> list[Any]:
        """The values that must be valid for all to be."""
        return list(self.values) if self.values is not None else [self.low, self.high]

    def holds(self, value: Any) -> bool:
        """Whether a value is in it."""
        if self.values is not None:
            return value in self.values
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return number and self.low is not None and self.high is not None and self.low <= value <= self.high

    @property
    def text(self) -> str:
        """As it is written on the command line."""
        if self.values is not None:
            return f"{self.key}={','.join(str(value) for value in self.values)}"
        return f"{self.key}={self.low}..{self.high}{':log' if self.log else ''}"


@dataclass(frozen=True)
class Space:
    """Some choices, of different settings."""

    choices: Sequence[Choice]

    def suggest(self, trial: Trial) -> dict[str, Any]:
        """Settings for a trial."""
        return {choice.key: choice.suggest(trial) for choice in self.choices}

    def points(self) -> Iterator[dict[str, Any]]:
        """Every combination; there is none of a range."""
        for choice in self.choices:
            if choice.values is None:
                raise UserError(f"a grid needs values, not a range: write {choice.key}=a,b,c, or take --sampler tpe")
        count = math.prod(len(choice.values or ()) for choice in self.choices)
        if count > MOST:
            raise UserError(f"this grid has {count:,} points; take --sampler tpe or fewer values")
        for values in itertools.product(*(choice.values or () for choice in self.choices)):
            yield {choice.key: value for choice, value in zip(self.choices, values, strict=True)}


LEARNING = [0.1, 0.05, 0.01]
PAPER = [  # the appendix's table; it does not say whose momentum, so each stage has its own
    Choice("specialist.lr", [0.1, 0.01]),
    Choice("specialist.momentum", [0.0, 0.9]),
    Choice("tangent.lr", LEARNING),
    Choice("tangent.momentum", [0.0, 0.9]),
    Choice("projection.lr", LEARNING),
    Choice("projection.momentum", [0.0, 0.9]),
]
SPACES = {"paper": PAPER}
SWITCHES = {"generalist", "project", "design"}  # what decides which stages a method has


def read(texts: Sequence[str], name: str | None, settings: Settings, refining: bool) -> Space:
    """The space of `--over` and `--space`: what stands in the first wins.

    Of a space by name only what this method uses is taken, and from kept specialists only what comes after them.
    """
    own = {choice.key: choice for choice in map(_choice, texts)}
    if len(own) < len(texts):
        raise UserError("--over names a setting twice; give each once")
    if name is not None and name not in SPACES:
        raise unknown("space", name, SPACES)
    for key in own if not SWITCHES & own.keys() else ():
        if key.partition(".")[0] in ("tangent", "projection") and not _used(key, settings, refining):
            raise UserError(
                f"--over {key} would change nothing: the method has no such stage (generalist is "
                f"{settings.generalist}); see itl methods"
            )
    named = [one for one in SPACES[name] if _used(one.key, settings, refining)] if name else []
    choices = [*(one for one in named if one.key not in own), *own.values()]
    if name and not choices:
        raise UserError(f"the space {name} has nothing for this: no generalist comes after the specialist; give --over")
    if not choices:
        raise UserError("there is nothing to search: give --space paper, or --over tangent.lr=0.001..0.1:log")
    return Space(choices)


def _used(key: str, settings: Settings, refining: bool) -> bool:
    stage = key.partition(".")[0]
    if stage == "specialist":
        return not refining
    return settings.projects if stage == "projection" else settings.generalist != "none"


def _choice(text: str) -> Choice:
    key, sign, spec = text.partition("=")
    key = key.strip()
    if not sign or not key or not spec.strip():
        raise UserError(f"--over is written key=low..high, key=low..high:log or key=a,b,c, not '{text}'")
    check_name(key)
    span, _, scale = spec.partition(":")
    low, dots, high = span.partition("..")
    if not dots:
        values = [parse([f"{key}={value}"])[key] for value in spec.split(",")]
        if len({repr(value) for value in values}) < len(values):
            raise UserError(f"--over {text} has a value twice; give each once")
        return Choice(key, values)
    ends = [parse([f"{key}={value}"])[key] for value in (low, high)]
    if scale not in ("", "log") or not all(isinstance(e, (int, float)) and not isinstance(e, bool) for e in ends):
        raise UserError(f"--over {text} is no range of numbers; write it like tangent.lr=0.001..0.1:log")
    if not ends[0] < ends[1] or (scale == "log" and ends[0] <= 0):
        raise UserError(f"--over {text}: a range goes from less to more" + (" and log above 0" if scale else ""))
    return Choice(key, None, ends[0], ends[1], scale == "log")
