"""What the reader of a page can select: methods, memory sizes and seeds, once for all tabs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from itl.report.run_selection import ReportData, ReportGroup
from itl.results.seed_groups import t_quantile

MAX_SELECTED = 12  # methods that are shown at first
# ITL and what it is compared with; methods in this order come first in every list.
PREFERRED: tuple[str, ...] = (
    "itl",
    "itl-l",
    "itl-na",
    "itl-l-na",
    "b",
    "b+lf",
    "b+ff",
    "b+hp+lf",
    "b+hp+ff+pd",
    "er",
    "derpp",
    "der",
)
PREFERRED += ("er-ace", "x-der", "joint", "sgd")
TABLE_MEASURES = ("class_il", "task_il", "forgetting", "average_incremental", "seconds")


def preference(group: ReportGroup) -> tuple[bool, int, str]:
    """Sort key: ITL and its baselines first, variants last."""
    method = group.metadata["method"]
    rank = PREFERRED.index(method) if method in PREFERRED else len(PREFERRED)
    return bool(group.metadata.get("variant")) or group.method_name != method, rank, group.method_name


def default_methods(groups: Sequence[ReportGroup]) -> list[str]:
    """The methods that are selected at first: all, or ITL and its baselines if there are too many."""
    names = dict.fromkeys(group.method_name for group in sorted(groups, key=preference))
    return list(names)[:MAX_SELECTED]


def values(group: ReportGroup, measure: str) -> dict[int, float]:
    """A column of the overview's table by seed."""
    if measure != "seconds":
        return group.samples(measure)
    return {int(result["seed"]): result["seconds"]["total"] for result in group.seed_group.results}


def selection(report: ReportData) -> dict[str, Any]:
    """What the page needs to filter groups and runs, and to compute means over some of the seeds."""
    groups = sorted(report.groups, key=preference)
    runs = {}
    for report_run in report.runs:
        group, metadata = report.group_of(report_run), report_run.metadata
        variant = f", {metadata['variant']}" if metadata.get("variant") else ""
        runs[report_run.key] = {
            "group": group.key if group else "",
            "method": group.method_name if group else f"{metadata['method']}{variant}",
            "size": str(metadata["buffer"]),
            "seed": str(metadata["seed"]),
        }
    most = max((len(group.seed_group.seeds) for group in groups), default=1)
    return {
        "groups": {
            group.key: {
                "name": group.name,
                "method": group.method_name,
                "size": str(group.metadata["buffer"]),
                "set": group.set_name,
                "seeds": [str(seed) for seed in group.seed_group.seeds],
                "values": {measure: values(group, measure) for measure in TABLE_MEASURES},
            }
            for group in groups
        },
        "runs": runs,
        "methods": default_methods(groups),
        "t": [0.0, 0.0, *(round(t_quantile(count), 6) for count in range(2, most + 1))],
    }
