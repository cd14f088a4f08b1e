"""Accuracy through the stages of a run (the paper's Fig. 3), and task by task (its appendix's breakdown)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from itl.report.chart import Axis, Band, Chart, Series
from itl.report.run_selection import ReportRun

WIDTHS = {"specialist": 2.0}  # of a stage on the x axis; the others: 1
LIMIT = 12_000  # numbers in one chart; beyond, curves are thinned
MEASURES = {"class_il": "Class-IL", "task_il": "Task-IL"}
CURVE = ("start", "curve")


def role(stage: str) -> str:
    """A stage's colour: any way of learning the generalist has the tangent's."""
    return stage if stage in ("specialist", "projection") else "tangent"


class StageTimeline:
    """Where each stage of a run stands on the x axis, and what was measured in it."""

    def __init__(self, lines: Sequence[dict[str, Any]], points: int | None = None) -> None:
        inside = [line for line in lines if line.get("kind") in (*CURVE, "end")]
        self.bands: list[tuple[int, str, float, float, list[dict[str, Any]]]] = []
        at = 0.0
        for (task, stage), part in groupby(inside, key=lambda line: (line["task"], line["stage"])):
            width = WIDTHS.get(stage, 1.0)
            self.bands.append((task, stage, at, at + width, list(part)))
            at += width
        self.end, self.points = at, points

    def curve(self, low: float, high: float, part: Sequence[dict[str, Any]]) -> list[tuple[float, dict[str, Any]]]:
        """(x, line) of a stage's curve, evenly spread; the half-pipe's drop at its very beginning."""
        within = [line for line in part if line["kind"] == "curve"]
        inner = [(low + (high - low) * (k + 1) / (len(within) + 1), line) for k, line in enumerate(within)]
        inner = _thin(inner, self.points)
        return [(low, line) for line in part if line["kind"] == "start"] + inner

    @property
    def starts(self) -> dict[int, tuple[float, float]]:
        """Each task's (first, last) x."""
        out: dict[int, tuple[float, float]] = {}
        for task, _, low, high, _ in self.bands:
            out[task] = (out.get(task, (low, high))[0], high)
        return out

    def axis(self) -> Axis:
        """The x axis: the tasks' numbers under their middles, thinned where there are many."""
        spans = self.starts
        every = -(-len(spans) // 12)
        word = "task " if len(spans) <= 6 else ""
        ticks = tuple(
            ((low + high) / 2, f"{word}{task}") for k, (task, (low, high)) in enumerate(spans.items()) if k % every == 0
        )
        return Axis("" if word else "task", 0.0, self.end, ticks=ticks)

    def dress(self) -> dict[str, Any]:
        """What the charts over training share: backgrounds and boundaries."""
        return {
            "x": self.axis(),
            "bands": tuple(Band(low, high, role(stage)) for _, stage, low, high, _ in self.bands),
            "rules": tuple(low for low, _ in self.starts.values()),
            "names": {role(stage): stage for _, stage, *_ in self.bands},
        }


def stages(report_run: ReportRun, measure: str = "class_il") -> Chart | None:
    """Accuracy over the tasks seen against training; a horizontal line is a stage's end, on the whole test set."""
    spans = StageTimeline(report_run.run.lines)
    if not spans.bands:
        return None
    names = list(dict.fromkeys(stage for _, stage, *_ in spans.bands))
    series = []
    for name in names:
        x, y, hover = [], [], []
        for _, stage, low, high, part in spans.bands:
            if stage == name:
                points = spans.curve(low, high, part)
                x += [p for p, _ in points] + [high]
                y += [line[measure] for _, line in points] + [None]
                hover += [_place(line) for _, line in points] + [""]
        series.append(Series(name, y, x, role=role(name), hover=hover, width=1.2))
    for name in names:
        x, y, hover = [], [], []
        for task, stage, low, high, part in spans.bands:
            ends = [line for line in part if line["kind"] == "end"]
            if stage == name and ends:
                x += [low, high, high]
                y += [ends[-1][measure], ends[-1][measure], None]
                hover += [f"task {task}, end of {stage}"] * 2 + [""]
        if x:
            series.append(Series(f"{name}: end", y, x, role=role(name), hover=hover, width=3.0, marks=False))
    known = [value for one in series for value in one.y if value is not None]
    low = max(0.0, min(known, default=0.0) - 8)
    return Chart(
        f"{MEASURES[measure]} through the stages",
        y=Axis(f"{MEASURES[measure]} over the tasks seen, %", low, 108.0),
        series=tuple(series),
        **spans.dress(),
    )


def breakdown(report_run: ReportRun, measure: str = "class_il") -> Chart | None:
    """Every task's accuracy through training, and their mean in bold."""
    lines = report_run.run.lines
    tasks = max((line["task"] for line in lines), default=0)
    numbers = sum(len(line.get(f"{measure}_tasks", ())) for line in lines if line.get("kind") in CURVE)
    spans = StageTimeline(lines)
    if numbers > LIMIT and spans.bands:
        spans.points = max(1, LIMIT // (len(spans.bands) * max(1, tasks // 2)))
    points = [point for _, _, low, high, part in spans.bands for point in spans.curve(low, high, part)]
    if not points:
        return None
    whole = Series("mean", [line[measure] for _, line in points], role="ink", width=3.0, marks=False, tag="mean")
    each = []
    for task in range(tasks):
        start = next((k for k, (_, line) in enumerate(points) if line["task"] > task), None)
        if start is not None:
            y = [line[f"{measure}_tasks"][task] for _, line in points[start:]]
            each.append(
                Series(f"task {task + 1}", y, start=start, role="abcdefgh"[task % 8], width=1.2, tag=str(task + 1))
            )
    return Chart(
        f"{MEASURES[measure]} of every task",
        y=Axis(f"{MEASURES[measure]}, %", 0.0, 104.0),
        series=(*each, whole),
        xs=tuple(x for x, _ in points),
        places=tuple(_place(line) for _, line in points),
        **spans.dress(),
    )


def _place(line: dict[str, Any]) -> str:
    return f"task {line['task']}, {line['stage']}, epoch {line['epoch']}"


def _thin(points: list[Any], limit: int | None) -> list[Any]:
    """At most `limit` of the points, evenly spread, the last among them."""
    if limit is None or len(points) <= limit:
        return points
    return [points[round((k + 1) * len(points) / limit) - 1] for k in range(limit)]
