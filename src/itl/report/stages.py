"""Accuracy through the stages of a run (the paper's Fig. 3), and of every task (its appendix)."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from itl.report.chart import ROLES, Axis, Band, Chart, Series

STAGE_WIDTHS = {"specialist": 2.0}  # on the x axis; 1 for the others
MAX_CHART_NUMBERS = 12_000  # curves with more numbers are thinned
MEASURES = {"class_il": "Class-IL", "task_il": "Task-IL"}
CURVE_KINDS = ("start", "curve")
Line = dict[str, Any]  # of metrics.jsonl


def role(stage: str) -> str:
    """The role (color) of a stage; every kind of generalist has that of the tangent stage."""
    return stage if stage in ("specialist", "projection") else "tangent"


class StageTimeline:
    """The position of each stage of a run on the x axis, and its measurements."""

    def __init__(self, lines: Sequence[Line], points: int | None = None) -> None:
        inside = [line for line in lines if line.get("kind") in (*CURVE_KINDS, "end")]
        self.bands: list[tuple[int, str, float, float, list[Line]]] = []
        at = 0.0
        for (task, stage), part in groupby(inside, key=lambda line: (line["task"], line["stage"])):
            width = STAGE_WIDTHS.get(stage, 1.0)
            self.bands.append((task, stage, at, at + width, list(part)))
            at += width
        self.end, self.points = at, points

    def curve(self, low: float, high: float, part: Sequence[Line]) -> list[tuple[float, Line]]:
        """(x, line) of a stage's curve, evenly spaced; the drop after the half-pipe is at its start."""
        within = [line for line in part if line["kind"] == "curve"]
        inner = [(low + (high - low) * (k + 1) / (len(within) + 1), line) for k, line in enumerate(within)]
        inner = _thin(inner, self.points)
        return [(low, line) for line in part if line["kind"] == "start"] + inner

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
        mean: Line = {name: statistics.fmean(line[name] for line in measured) for name in MEASURES}
        for name in (f"{measure}_tasks" for measure in MEASURES):
            mean[name] = [statistics.fmean(column) for column in zip(*(line[name] for line in measured), strict=False)]
        out.append({**first, **mean})
    return out


def stages(lines: Sequence[Line], measure: str = "class_il") -> Chart | None:
    """Mean accuracy over the tasks seen during training; horizontal lines are stage ends on all test images."""
    timeline = StageTimeline(lines)
    if not timeline.bands:
        return None
    names = list(dict.fromkeys(stage for _, stage, *_ in timeline.bands))
    series = []
    for name in names:
        x, y, hover = [], [], []
        for _, stage, low, high, part in timeline.bands:
            if stage == name:
                points = timeline.curve(low, high, part)
                x += [p for p, _ in points] + [high]
                y += [line[measure] for _, line in points] + [None]
                hover += [_describe(line) for _, line in points] + [""]
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
        f"{MEASURES[measure]} through the stages",
        y=Axis(f"{MEASURES[measure]} over the tasks seen, %", low, 108.0),
        series=tuple(series),
        **timeline.chart_options(),
    )


def breakdown(lines: Sequence[Line], measure: str = "class_il") -> Chart | None:
    """The accuracy of every task during training, and their mean in bold."""
    tasks = max((line["task"] for line in lines), default=0)
    numbers = sum(len(line.get(f"{measure}_tasks", ())) for line in lines if line.get("kind") in CURVE_KINDS)
    timeline = StageTimeline(lines)
    if numbers > MAX_CHART_NUMBERS and timeline.bands:
        timeline.points = max(1, MAX_CHART_NUMBERS // (len(timeline.bands) * max(1, tasks // 2)))
    points = [point for _, _, low, high, part in timeline.bands for point in timeline.curve(low, high, part)]
    if not points:
        return None
    mean = Series("mean", [line[measure] for _, line in points], role="ink", width=3.0, marks=False, tag="mean")
    task_series = []
    for task in range(tasks):
        start = next((k for k, (_, line) in enumerate(points) if line["task"] > task), None)
        if start is not None:
            y = [line[f"{measure}_tasks"][task] for _, line in points[start:]]
            task_series.append(
                Series(f"task {task + 1}", y, start=start, role=ROLES[task % len(ROLES)], width=1.2, tag=str(task + 1))
            )
    return Chart(
        f"{MEASURES[measure]} of every task",
        y=Axis(f"{MEASURES[measure]}, %", 0.0, 104.0),
        series=(*task_series, mean),
        xs=tuple(x for x, _ in points),
        descriptions=tuple(_describe(line) for _, line in points),
        **timeline.chart_options(),
    )


def _describe(line: Line) -> str:
    return f"task {line['task']}, {line['stage']}, epoch {line['epoch']}"


def _thin(points: list[Any], limit: int | None) -> list[Any]:
    """At most `limit` points, evenly spaced, including the last."""
    if limit is None or len(points) <= limit:
        return points
    return [points[round((k + 1) * len(points) / limit) - 1] for k in range(limit)]
