"""Charts as data: numbers, labels and roles, without colors or sizes.

The page's charting library and matplotlib draw the same data, so the HTML report and the figure files cannot differ.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import numpy as np

DIGITS = 2  # decimal places of every number that is shown
ROLES = "abcdefgh"  # roles of series without a meaning of their own


@dataclass(frozen=True)
class Axis:
    """An axis: title, range (None: fit the data), ticks and categories."""

    title: str = ""
    low: float | None = None
    high: float | None = None
    log: bool = False
    ticks: tuple[tuple[float, str], ...] = ()
    categories: tuple[str, ...] = ()


@dataclass(frozen=True)
class Series:
    """One series of a chart. `kind` is line, points or bars; `role` selects color, dash, symbol and pattern.

    Without `x`, the values are at the chart's `xs` from index `start` on. `hover` describes each mark. A None in `y` is
    a gap. Selectors of the page highlight a series by its `tag`.

    `groups` names the group of runs of each mark, and `samples` has its value for each seed. With them the page shows
    only what its reader has selected, and computes means over the selected seeds.
    """

    name: str
    y: Sequence[float | None]
    x: Sequence[float | str] = ()
    start: int = 0
    kind: str = "line"
    role: str = "a"
    error: Sequence[float | None] = ()
    hover: Sequence[str] = ()
    width: float = 1.5
    marks: bool = True
    tag: str = ""
    groups: Sequence[str] = ()
    samples: Sequence[Mapping[int, float]] = ()
    interval: str = "std"  # what `error` is: std, or ci95 for half of a 95 % interval of the mean
    band: bool = False  # draw `error` as a band around the line


@dataclass(frozen=True)
class Band:
    """A range of the x axis with a background color: a stage."""

    low: float
    high: float
    role: str


@dataclass(frozen=True)
class HeatMap:
    """A matrix `values[row][column]`; None leaves a cell empty. `kind` is percent or count."""

    columns: tuple[str, ...]
    rows: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]
    kind: str = "percent"
    high: float = 100.0
    labels: tuple[str, str] = ("", "")  # meaning of a row and of a column
    samples: Mapping[int, Any] = field(default_factory=dict)  # `values` by seed, if they are means


@dataclass(frozen=True)
class Chart:
    """One figure. `rules` are dotted vertical lines (task boundaries), `levels` named horizontal lines."""

    title: str
    x: Axis = Axis()
    y: Axis = Axis()
    series: tuple[Series, ...] = ()
    bands: tuple[Band, ...] = ()
    rules: tuple[float, ...] = ()
    levels: tuple[tuple[float, str], ...] = ()
    heatmap: HeatMap | None = None
    xs: tuple[float, ...] = ()
    descriptions: tuple[str, ...] = ()  # of the marks at `xs`
    horizontal: bool = False
    line_labels: bool = False  # name lines at their ends and shift them, so that marks do not cover each other
    stacked: bool = False
    unit: str = "%"
    names: Mapping[str, str] = field(default_factory=dict)  # of the stages, by role

    def at(self, series: Series) -> list[float | str]:
        """The x values of a series."""
        return list(series.x) if len(series.x) else list(self.xs[series.start : series.start + len(series.y)])


def value_range(series: Sequence[Series]) -> tuple[float, float]:
    """The lowest and the highest value of some series, including their error bars."""
    ends = [
        (value - spread, value + spread)
        for drawn in series
        for value, spread in zip(drawn.y, [error or 0.0 for error in drawn.error] or [0.0] * len(drawn.y), strict=True)
        if value is not None
    ]
    return min((low for low, _ in ends), default=0.0), max((high for _, high in ends), default=0.0)


class SharedLists:
    """Long lists that several charts share (x values, descriptions), stored once; `{"$": index}` refers to one."""

    MIN_LENGTH = 12  # shorter lists stay in their chart

    def __init__(self) -> None:
        self.lists: list[Any] = []
        self.indices: dict[tuple[Any, ...], int] = {}

    def share(self, chart: dict[str, Any]) -> dict[str, Any]:
        """Replace the long lists of a chart (as JSON) by references."""
        for part in (chart, *chart.get("series", ())):
            for name in ("x", "hover", "xs", "descriptions"):
                if isinstance(part.get(name), list) and len(part[name]) > self.MIN_LENGTH:
                    part[name] = {"$": self._index(part[name])}
        return chart

    def _index(self, value: list[Any]) -> int:
        key = tuple(value)
        if key not in self.indices:
            self.indices[key] = len(self.lists)
            self.lists.append(value)
        return self.indices[key]


UNCHANGED = frozenset({str, int, bool, type(None)})  # types that are JSON values already
MIN_ARRAY = 24  # from this length on an array is faster than a loop


def encode(chart: Chart) -> str:
    """A chart as compact JSON."""
    return compact_json(plain(chart))


def compact_json(value: Any) -> str:
    """JSON without spaces."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def plain(value: Any) -> Any:
    """A chart (or a container of charts) as JSON values: numbers rounded, empty fields omitted."""
    if isinstance(value, (list, tuple)):  # most are long lists of texts or of numbers
        kinds = set(map(type, value))
        if kinds <= UNCHANGED:
            return list(value)
        if len(value) >= MIN_ARRAY and kinds <= {float, type(None)}:
            return _round_all(value)
        return [plain(part) for part in value]
    if type(value) in UNCHANGED:
        return value
    if isinstance(value, float):  # numpy's float64 is one, too
        return _round(value)
    if is_dataclass(value):
        parts = {entry.name: getattr(value, entry.name) for entry in fields(value)}
        value = {
            name: part
            for name, part in parts.items()
            if part is not None and part is not False and part not in ("", "std") and part != () and part != {}
        }
    return {name: plain(part) for name, part in value.items()} if isinstance(value, dict) else value


def _round(value: float) -> float:
    """The number that is shown."""
    rounded = round(float(value), DIGITS)
    return int(rounded) if rounded == int(rounded) else rounded


def _round_all(values: Sequence[float | None]) -> list[float | None]:
    """`_round` of each number. An array is not exact at ties and has neither None nor whole numbers: one by one."""
    scaled = np.array(values, float) * 10**DIGITS
    whole = np.rint(scaled)
    out: list[float | None] = (whole / 10**DIGITS).tolist()
    with_care = ~(np.abs(scaled - whole) < 0.5 - 1e-6) | ~(np.abs(scaled) < 1e9) | (whole % 10**DIGITS == 0)
    for k in np.flatnonzero(with_care).tolist():
        value = values[k]
        out[k] = None if value is None else _round(value)
    return out
