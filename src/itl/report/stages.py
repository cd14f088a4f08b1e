"""Accuracy through the stages of a run (the paper's Fig. 3), and of every task (its appendix)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import groupby
from typing import Any

from itl.report.chart import ROLES, Axis, Band, Chart, Series
from itl.results.render import MEASURE_NAMES

STAGE_WIDTHS = {"specialist": 2.0}  # on the x axis; 1 for the others
MAX_CHART_NUMBERS = 12_000  # curves with more numbers are thinned
CURVE_KINDS = ("start", "curve")
Line = dict[str, Any]  # of metrics.jsonl
Point = tuple[float, Line, str]  # x, measurement, description


def role(stage: str) -> str:
    """The role (color) of a stage; every kind of generalist has that of the tangent stage."""
    return stage if stage in ("specialist", "projection") else "tangent"


class StageTimeline:
    """The position of each stage of a run on the x axis, and its measurements."""

    def __init__(self, lines: Sequence[Line]) -> None:
        inside = [line for line in lines if line.get("kind") in (*CURVE_KINDS, "end")]
        self.bands: list[tuple[int, str, float, float, list[Line]]] = []
        at = 0.0
        for (task, stage), part in groupby(inside, key=lambda line: (line["task"], line["stage"])):
            width = STAGE_WIDTHS.get(stage, 1.0)
            self.bands.append((task, stage, at, at + width, list(part)))
            at += width
        self.end = at

    @cached_property
    def curves(self) -> list[list[Point]]:
        """The points of each stage's curve, evenly spaced; the drop after the half-pipe is at its start."""
        curves = []
        for _, _, low, high, part in self.bands:
            within = [line for line in part if line["kind"] == "curve"]
            points = [(low, line) for line in part if line["kind"] == "start"]
            points += [(low + (high - low) * (k + 1) / (len(within) + 1), line) for k, line in enumerate(within)]
            curves.append(
                [(x, line, f"task {line['task']}, {line['stage']}, epoch {line['epoch']}") for x, line in points]
            )
        return curves

    @cached_property
    def lines(self) -> list[Line]:
        """The measurements of all curves."""
        return [line for curve in self.curves for _, line, _ in curve]

    @property
    def task_ranges(self) -> dict[int, tuple[float, float]]:
        """The (first, last) x of each task."""
        out: dict[int, tuple[float, float]] = {}
        for task, _, low, high, _ in self.bands:
            out[task] = (out.get(task, (low, high))[0], high)
        return out

    def axis(self) -> Axis:
        """The x axis with task numbers at the center of each task; some are omitted if there are many."""
        ranges = self.task_ranges
        step = -(-len(ranges) // 12)
        word = "task " if len(ranges) <= 6 else ""
        ticks = tuple(
            ((low + high) / 2, f"{word}{task}") for k, (task, (low, high)) in enumerate(ranges.items()) if k % step == 0
        )
        return Axis("" if word else "task", 0.0, self.end, ticks=ticks)

    def chart_options(self) -> dict[str, Any]:
        """Axis, backgrounds and task boundaries of the charts over training."""
        return {
            "x": self.axis(),
            "bands": tuple(Band(low, high, role(stage)) for _, stage, low, high, _ in self.bands),
            "rules": tuple(low for low, _ in self.task_ranges.values()),
            "names": {role(stage): stage for _, stage, *_ in self.bands},
        }


def mean_lines(runs: Sequence[Sequence[Line]]) -> list[Line]:
    """The lines of several runs, averaged: those measurements that all of the runs made."""
    keyed: list[dict[tuple[Any, ...], Line]] = []
    for lines in runs:
        repeats: Counter[tuple[Any, ...]] = Counter()
        keyed.append({})
        for line in lines:
            position = (line["kind"], line["task"], line["stage"], line["epoch"])
            keyed[-1][*position, repeats[position]] = line
            repeats[position] += 1
    out = []
    for key, first in keyed[0].items():
        measured = [by_key[key] for by_key in keyed if key in by_key]
        if len(measured) < len(keyed):
            continue
        count = len(measured)
        mean: Line = {name: math.fsum([line[name] for line in measured]) / count for name in MEASURE_NAMES}
        for name in (f"{measure}_tasks" for measure in MEASURE_NAMES):
            mean[name] = [math.fsum(column) / count for column in zip(*[line[name] for line in measured], strict=False)]
        out.append({**first, **mean})
    return out


def stages(lines: Sequence[Line] | StageTimeline, measure: str = "class_il") -> Chart | None:
    """Mean accuracy over the tasks seen during training; horizontal lines are stage ends on all test images.

    Args:
        lines: The lines of metrics.jsonl, or their timeline if several charts share it.
        measure: "class_il" or "task_il".
    """
    timeline = lines if isinstance(lines, StageTimeline) else StageTimeline(lines)
    if not timeline.bands:
        return None
    names = list(dict.fromkeys(stage for _, stage, *_ in timeline.bands))
    series = []
    for name in names:
        x, y, hover = [], [], []
        for (_, stage, _, high, _), points in zip(timeline.bands, timeline.curves, strict=True):
            if stage == name:
                x += [p for p, _, _ in points] + [high]
                y += [line[measure] for _, line, _ in points] + [None]
                hover += [description for _, _, description in points] + [""]
        series.append(Series(name, y, x, role=role(name), hover=hover, width=1.2))
    for name in names:
        x, y, hover = [], [], []
        for task, stage, low, high, part in timeline.bands:
            ends = [line for line in part if line["kind"] == "end"]
            if stage == name and ends:
                x += [low, high, high]
                y += [ends[-1][measure], ends[-1][measure], None]
                hover += [f"task {task}, end of {stage}"] * 2 + [""]
        if x:
            series.append(Series(f"{name}: end", y, x, role=role(name), hover=hover, width=3.0, marks=False))
    known = [value for drawn in series for value in drawn.y if value is not None]
    low = max(0.0, min(known, default=0.0) - 8)
    return Chart(
        f"{MEASURE_NAMES[measure]} through the stages",
        y=Axis(f"{MEASURE_NAMES[measure]} over the tasks seen, %", low, 108.0),
        series=tuple(series),
        **timeline.chart_options(),
    )


def breakdown(lines: Sequence[Line] | StageTimeline, measure: str = "class_il") -> Chart | None:
    """The accuracy of every task during training, and their mean in bold; arguments as in `stages`."""
    timeline = lines if isinstance(lines, StageTimeline) else StageTimeline(lines)
    tasks = max((task for task, *_ in timeline.bands), default=0)
    numbers = sum(len(line[f"{measure}_tasks"]) for line in timeline.lines)
    limit = None
    if numbers > MAX_CHART_NUMBERS:
        limit = max(1, MAX_CHART_NUMBERS // (len(timeline.bands) * max(1, tasks // 2)))
    points = [point for curve in timeline.curves for point in _thin(curve, limit)]
    if not points:
        return None
    mean = Series("mean", [line[measure] for _, line, _ in points], role="ink", width=3.0, marks=False, tag="mean")
    task_series = []
    for task in range(tasks):
        start = next((k for k, (_, line, _) in enumerate(points) if line["task"] > task), None)
        if start is not None:
            y = [line[f"{measure}_tasks"][task] for _, line, _ in points[start:]]
            task_series.append(
                Series(f"task {task + 1}", y, start=start, role=ROLES[task % len(ROLES)], width=1.2, tag=str(task + 1))
            )
    return Chart(
        f"{MEASURE_NAMES[measure]} of every task",
        y=Axis(f"{MEASURE_NAMES[measure]}, %", 0.0, 104.0),
        series=(*task_series, mean),
        xs=tuple(x for x, _, _ in points),
        descriptions=tuple(description for _, _, description in points),
        **timeline.chart_options(),
    )


def tasks_with_curves(runs: Iterable[Sequence[Line]]) -> int:
    """The number of the last task that a run measured within its stages."""
    return max((line["task"] for lines in runs for line in lines if line["kind"] in CURVE_KINDS), default=0)


def _thin(points: list[Point], limit: int | None) -> list[Point]:
    """At most `limit` points after the start, evenly spaced, including the last."""
    first = [point for point in points if point[1]["kind"] == "start"]
    others = points[len(first) :]
    if limit is None or len(others) <= limit:
        return points
    return first + [others[round((k + 1) * len(others) / limit) - 1] for k in range(limit)]
