"""Search spaces: ranges or values of settings, and the paper's space by name."""

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

MAX_GRID_POINTS = 10_000


@dataclass(frozen=True)
class Dimension:
    """Values or range of one setting.

    Args:
        key: Dotted name of the setting.
        values: Values to choose from, or None for a range.
        low: Smallest value of a range.
        high: Largest value of a range. If both ends are integers, so are the values.
        log: Whether to sample the range on a logarithmic scale.
    """

    key: str
    values: Sequence[Any] | None = None
    low: float | None = None
    high: float | None = None
    log: bool = False

    def suggest(self, trial: Trial) -> Any:
        """Value for a trial; a trial that already has one keeps it."""
        if self.values is not None:
            return trial.suggest_categorical(self.key, list(self.values))
        assert self.low is not None
        assert self.high is not None
        if isinstance(self.low, int) and isinstance(self.high, int):
            return trial.suggest_int(self.key, self.low, self.high, log=self.log)
        return trial.suggest_float(self.key, float(self.low), float(self.high), log=self.log)

    def boundary_values(self) -> list[Any]:
        """Values that must be valid for all others to be valid."""
        return list(self.values) if self.values is not None else [self.low, self.high]

    def contains(self, value: Any) -> bool:
        """Whether the dimension contains a value."""
        if self.values is not None:
            return value in self.values
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return number and self.low is not None and self.high is not None and self.low <= value <= self.high

    @property
    def text(self) -> str:
        """The dimension in the syntax of `--over`."""
        if self.values is not None:
            return f"{self.key}={','.join(str(value) for value in self.values)}"
        return f"{self.key}={self.low}..{self.high}{':log' if self.log else ''}"


@dataclass(frozen=True)
class Space:
    """Dimensions of different settings."""

    dimensions: Sequence[Dimension]

    def suggest(self, trial: Trial) -> dict[str, Any]:
        """Settings for a trial."""
        return {dimension.key: dimension.suggest(trial) for dimension in self.dimensions}

    @property
    def size(self) -> int | None:
        """Number of points; None if a dimension is a range, or if there are too many points to list."""
        if any(dimension.values is None for dimension in self.dimensions):
            return None
        count = math.prod(len(dimension.values or ()) for dimension in self.dimensions)
        return count if count <= MAX_GRID_POINTS else None

    def points(self) -> Iterator[dict[str, Any]]:
        """All combinations of values.

        Raises:
            UserError: If a dimension is a range, or if there are too many combinations.
        """
        for dimension in self.dimensions:
            if dimension.values is None:
                key = dimension.key
                raise UserError(f"A grid cannot search the range of {key}. Use {key}=a,b,c or --sampler tpe.")
        count = math.prod(len(dimension.values or ()) for dimension in self.dimensions)
        if count > MAX_GRID_POINTS:
            raise UserError(
                f"The grid has {count:,} points, more than {MAX_GRID_POINTS:,}. Use fewer values or --sampler tpe."
            )
        for values in itertools.product(*(dimension.values or () for dimension in self.dimensions)):
            yield {dimension.key: value for dimension, value in zip(self.dimensions, values, strict=True)}


GENERALIST_LEARNING_RATES = [0.1, 0.05, 0.01]
PAPER_SPACE = [  # the appendix's table; it names no stage for the momentum, so each stage has its own
    Dimension("specialist.lr", [0.1, 0.01]),
    Dimension("specialist.momentum", [0.0, 0.9]),
    Dimension("tangent.lr", GENERALIST_LEARNING_RATES),
    Dimension("tangent.momentum", [0.0, 0.9]),
    Dimension("projection.lr", GENERALIST_LEARNING_RATES),
    Dimension("projection.momentum", [0.0, 0.9]),
]
SPACES = {"paper": PAPER_SPACE}
STAGE_SETTINGS = {"generalist", "project", "design"}  # these decide which stages a method has


def parse_space(texts: Sequence[str], name: str | None, settings: Settings, refining: bool) -> Space:
    """Space of the options `--over` and `--space`; `--over` has precedence.

    Args:
        texts: Values of `--over`, such as `tangent.lr=0.001..0.1:log`.
        name: Value of `--space`. Settings of stages that the method does not have are left out.
        settings: Settings of the method.
        refining: Whether the search starts from saved specialists, so that their settings are left out too.

    Raises:
        UserError: If an option is invalid or nothing is left to search.
    """
    given = {dimension.key: dimension for dimension in map(_parse_dimension, texts)}
    if len(given) < len(texts):
        raise UserError("A setting occurs twice in --over. Give each setting once.")
    if name is not None and name not in SPACES:
        raise unknown("space", name, SPACES)
    for key in given if not STAGE_SETTINGS & given.keys() else ():
        if key.partition(".")[0] in ("tangent", "projection") and not _is_used(key, settings, refining):
            raise UserError(
                f"--over {key} would change nothing: the method has no such stage (generalist is "
                f"{settings.generalist}). See itl methods."
            )
    named = [dimension for dimension in SPACES[name] if _is_used(dimension.key, settings, refining)] if name else []
    dimensions = [*(dimension for dimension in named if dimension.key not in given), *given.values()]
    if name and not dimensions:
        raise UserError(f"The space {name} has no settings of this method's generalist. Use --over.")
    if not dimensions:
        raise UserError("There is nothing to search. Use --space paper, or --over tangent.lr=0.001..0.1:log.")
    return Space(dimensions)


def _is_used(key: str, settings: Settings, refining: bool) -> bool:
    """Whether the method has the stage of a setting."""
    stage = key.partition(".")[0]
    if stage == "specialist":
        return not refining
    return settings.projects if stage == "projection" else settings.generalist != "none"


def _parse_dimension(text: str) -> Dimension:
    key, sign, spec = text.partition("=")
    key = key.strip()
    if not sign or not key or not spec.strip():
        raise UserError(f"Invalid --over '{text}'. Use key=low..high, key=low..high:log or key=a,b,c.")
    check_name(key)
    span, _, scale = spec.partition(":")
    low, dots, high = span.partition("..")
    if not dots:
        values = [parse([f"{key}={value}"])[key] for value in spec.split(",")]
        if len({repr(value) for value in values}) < len(values):
            raise UserError(f"A value occurs twice in --over {text}. Give each value once.")
        return Dimension(key, values)
    ends = [parse([f"{key}={value}"])[key] for value in (low, high)]
    if scale not in ("", "log") or not all(isinstance(e, (int, float)) and not isinstance(e, bool) for e in ends):
        raise UserError(f"--over {text} is not a range of numbers. Use a form like tangent.lr=0.001..0.1:log.")
    if not ends[0] < ends[1]:
        raise UserError(f"The range of --over {text} is empty. Give the smaller number first.")
    if scale == "log" and ends[0] <= 0:
        raise UserError(f"A logarithmic range must be above 0, unlike --over {text}. Raise its lower end.")
    return Dimension(key, None, ends[0], ends[1], scale == "log")
