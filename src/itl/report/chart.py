"""What a figure is: numbers, words and roles, without a colour or a pixel.

The page's charting library and matplotlib both draw from these, so that a report and a paper's figure cannot differ.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

DIGITS = 2  # of every number that is shown


@dataclass(frozen=True)
class Axis:
    """An axis: its words, its range (None: what the data needs), and where its ticks are."""

    title: str = ""
    low: float | None = None
    high: float | None = None
    log: bool = False
    ticks: tuple[tuple[float, str], ...] = ()
    categories: tuple[str, ...] = ()


@dataclass(frozen=True)
class Series:
    """Marks that belong together. `kind`: line, points or bars; `role` names its colour, dash, symbol and pattern.

    Without `x` its values stand at the chart's own `xs` from `start` on. `hover` says of each mark where it stands.
    A None in `y` is a gap. `tag` is what a selector of the page can single out.
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


@dataclass(frozen=True)
class Band:
    """A part of the x axis with a background: a stage."""

    low: float
    high: float
    role: str


@dataclass(frozen=True)
class HeatMap:
    """A matrix: `values[row][column]`, None where there is none. `kind` is percent or count."""

    columns: tuple[str, ...]
    rows: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]
    kind: str = "percent"
    high: float = 100.0
    says: tuple[str, str] = ("", "")  # what a row and a column are


@dataclass(frozen=True)
class Chart:
    """One figure. `rules` are dotted vertical lines (a task's beginning); `levels` are horizontal, with a name."""

    title: str
    x: Axis = Axis()
    y: Axis = Axis()
    series: tuple[Series, ...] = ()
    bands: tuple[Band, ...] = ()
    rules: tuple[float, ...] = ()
    levels: tuple[tuple[float, str], ...] = ()
    heatmap: HeatMap | None = None
    xs: tuple[float, ...] = ()
    places: tuple[str, ...] = ()
    horizontal: bool = False
    stacked: bool = False
    unit: str = "%"
    names: Mapping[str, str] = field(default_factory=dict)  # of the bands' roles

    def at(self, series: Series) -> list[float | str]:
        """Where a series' marks stand."""
        return list(series.x) if len(series.x) else list(self.xs[series.start : series.start + len(series.y)])

    def says(self, series: Series) -> list[str]:
        """What each mark's hover says of its place."""
        if len(series.hover):
            return list(series.hover)
        return list(self.places[series.start : series.start + len(series.y)])


class SharedLists:
    """Lists that several charts share (where marks stand, what they say), kept once: `{"$": place}` stands for one."""

    SHORT = 12  # entries that are not worth it

    def __init__(self) -> None:
        self.lists: list[Any] = []
        self.places: dict[str, int] = {}

    def share(self, chart: dict[str, Any]) -> dict[str, Any]:
        """A chart (as JSON) with its long lists in the pool."""
        for part in (chart, *chart.get("series", ())):
            for name in ("x", "hover", "xs", "places"):
                if isinstance(part.get(name), list) and len(part[name]) > self.SHORT:
                    part[name] = {"$": self._place(part[name])}
        return chart

    def _place(self, value: list[Any]) -> int:
        key = json.dumps(value)
        if key not in self.places:
            self.places[key] = len(self.lists)
            self.lists.append(value)
        return self.places[key]


def plain(value: Any) -> Any:
    """A chart (or anything made of such) as JSON: numbers rounded to what is shown, what is empty left out."""
    if is_dataclass(value):
        parts = {one.name: getattr(value, one.name) for one in fields(value)}
        value = {
            name: part
            for name, part in parts.items()
            if part is not None and part is not False and part != "" and part != ()
        }
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    if isinstance(value, float):
        short = round(value, DIGITS)
        return int(short) if short == int(short) else short
    return value
