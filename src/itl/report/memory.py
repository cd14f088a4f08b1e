"""The content of the memory: images per class after each task, and when each image was added."""

from __future__ import annotations

import numpy as np

from itl.report.chart import Axis, Chart, HeatMap, Series
from itl.report.run_selection import ReportRun
from itl.results.image_selection import balanced_subset

MAX_MARKS = 2000  # images shown in `arrivals`
SPREAD_BINS = 60  # marks of one class within this fraction of the x axis are drawn above each other


def held(report_run: ReportRun) -> Chart | None:
    """Images per class (row) after each task (column)."""
    if report_run.result is not None:
        history = report_run.result.get("memory_history") or []
    else:
        history = [line.get("memory") for line in report_run.run.lines if line.get("kind") == "expert"]
    history = [counts for counts in history if counts]
    if not history or not np.any(history):
        return None
    names = report_run.class_names or [str(number) for number in range(len(history[0]))]
    values = tuple(tuple(int(counts[row]) or None for counts in history) for row in range(len(history[0])))
    return Chart(
        "Images of each class in memory",
        x=Axis("after task"),
        y=Axis("class"),
        heatmap=HeatMap(
            tuple(str(task + 1) for task in range(len(history))),
            tuple(names[: len(values)]),
            values,
            "count",
            float(np.max(history)),
            ("class", "after task"),
        ),
        unit="images",
    )


def arrivals(report_run: ReportRun) -> Chart | None:
    """The training step at which each image in the final memory was added."""
    slots = (report_run.result or {}).get("memory") or {}
    label, written, task = (np.array(slots.get(name, []), int) for name in ("label", "written", "task"))
    if not len(label):
        return None
    chosen = balanced_subset(label, MAX_MARKS)
    names = report_run.class_names
    hover = [f"{_name(names, label[k])}, task {task[k] + 1}, step {written[k]}" for k in chosen]
    heights = label[chosen] + _spread(label[chosen], written[chosen])
    note = "" if len(chosen) == len(label) else f" ({len(chosen)} of {len(label)} shown)"
    classes = sorted(set(label.tolist()))
    step = -(-len(classes) // 25)
    return Chart(
        f"When the images in memory were added{note}",
        x=Axis("training step", low=0.0),
        y=Axis("", -0.7, max(classes) + 0.7, ticks=tuple((c, _name(names, c)) for c in classes[::step])),
        series=(
            Series(
                "image",
                [round(float(y), 2) for y in heights],
                [int(written[k]) for k in chosen],
                kind="points",
                role="a",
                hover=hover,
            ),
        ),
        unit="mark",
    )


def _spread(label: np.ndarray, written: np.ndarray) -> np.ndarray:
    """Vertical offsets in ±0.35 that separate marks of one class whose steps are close to each other."""
    bins = written * SPREAD_BINS // (int(written.max()) + 1)
    _, cell, counts = np.unique(np.stack([label, bins]), axis=1, return_inverse=True, return_counts=True)
    cell = cell.reshape(-1)
    order = np.argsort(cell, kind="stable")
    rank = np.empty(len(label), int)
    rank[order] = np.arange(len(label)) - np.repeat(np.cumsum(counts) - counts, counts)
    return 0.7 * (rank + 1) / (counts[cell] + 1) - 0.35


def _name(names: list[str], label: int) -> str:
    return names[label] if label < len(names) else str(label)
