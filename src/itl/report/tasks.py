"""Accuracy matrices by task (the paper's Fig. 4) and the confusion matrix."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from itl.report.chart import Axis, Chart, HeatMap, Series
from itl.report.run_selection import ReportRun
from itl.results.render import MEASURE_NAMES

MAX_PAIRS = 12


def matrix(runs: Sequence[ReportRun], measure: str = "class_il") -> Chart | None:
    """Row: after learning task t; column: accuracy on task k ≤ t; mean over the runs."""
    matrices = [report_run.matrices[measure] for report_run in runs]
    tasks = min((len(matrix_of_run) for matrix_of_run in matrices), default=0)
    if not tasks:
        return None
    cut = np.array([[row[:tasks] for row in matrix_of_run[:tasks]] for matrix_of_run in matrices])
    by_seed = {report_run.metadata["seed"]: _seen(own) for report_run, own in zip(runs, cut, strict=True)}
    values = _seen(cut.mean(axis=0))
    names = tuple(str(task + 1) for task in range(tasks))
    return Chart(
        f"{MEASURE_NAMES[measure]} task by task",
        x=Axis("accuracy on task"),
        y=Axis("after task"),
        heatmap=HeatMap(
            names, names, values, labels=("after task", "task"), samples=by_seed if len(by_seed) > 1 else {}
        ),
    )


def _seen(matrix: np.ndarray) -> tuple[tuple[float | None, ...], ...]:
    """A matrix without the accuracies on tasks that were not learned yet."""
    return tuple(tuple(float(v) if k <= t else None for k, v in enumerate(row)) for t, row in enumerate(matrix))


def counts(report_run: ReportRun) -> np.ndarray | None:
    """Number of test images by true class (row) and predicted class (column), among all classes."""
    if report_run.predictions is None:
        return None
    label, guess = (report_run.predictions[name].astype(int) for name in ("label", "class_il"))
    size = max(len(report_run.class_names), int(label.max(initial=0)) + 1, int(guess.max(initial=0)) + 1)
    out = np.zeros((size, size), int)
    np.add.at(out, (label, guess), 1)
    return out


def confusion(report_run: ReportRun) -> Chart | None:
    """The confusion matrix of the final expert."""
    table = counts(report_run)
    if table is None:
        return None
    names = _labels(report_run, len(table))
    values = tuple(tuple(int(v) for v in row) for row in table)
    high = float(max(1, table.max()))
    return Chart(
        "Confusion matrix",
        x=Axis("predicted class"),
        y=Axis("true class"),
        heatmap=HeatMap(names, names, values, "count", high, ("true class", "predicted as")),
        unit="images",
    )


def pairs(report_run: ReportRun) -> Chart | None:
    """The most common confusions, the most frequent first."""
    table = counts(report_run)
    if table is None:
        return None
    names = _labels(report_run, len(table))
    wrong = table - np.diag(np.diag(table))
    order = [int(k) for k in np.argsort(-wrong, axis=None, kind="stable")[:MAX_PAIRS] if wrong.flat[k] > 0]
    if not order:
        return None
    rows = [(f"{names[k // len(table)]} → {names[k % len(table)]}", int(wrong.flat[k])) for k in reversed(order)]
    series = Series("images", [n for _, n in rows], [name for name, _ in rows], kind="bars", role="a")
    return Chart(
        "The most common confusions",
        x=Axis("test images", low=0.0),
        y=Axis(categories=tuple(name for name, _ in rows)),
        series=(series,),
        horizontal=True,
        unit="images",
    )


def _labels(report_run: ReportRun, count: int) -> tuple[str, ...]:
    names = report_run.class_names[:count]
    return (*names, *(str(number) for number in range(len(names), count)))
