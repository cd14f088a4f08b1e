"""The runs of a report, grouped by seed, with short distinct names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from itl.results import Run
from itl.results.seed_groups import SeedGroup, group_by_seed
from itl.results.table import TableRow, build

NAME_FIELDS = ("stream", "split", "method", "variant", "buffer", "seed")


@dataclass(frozen=True)
class ReportRun:
    """A run with its key and its name in the report."""

    key: str
    name: str
    run: Run

    @property
    def metadata(self) -> dict[str, Any]:
        """Method, stream and so on."""
        return self.run.metadata

    @property
    def result(self) -> dict[str, Any] | None:
        """The content of result.json; None for an unfinished run."""
        return self.run.result

    @property
    def predictions(self) -> dict[str, np.ndarray] | None:
        """The arrays of predictions.npz; None if there are none."""
        return self.run.predictions

    @cached_property
    def matrices(self) -> dict[str, list[list[float]]]:
        """The accuracy matrices, with one row for each task learned so far."""
        experts = [line for line in self.run.lines if line.get("kind") == "expert"]
        if self.result is not None:
            return {name: self.result[f"{name}_matrix"] for name in ("class_il", "task_il")}
        return {name: [line[f"{name}_tasks"] for line in experts] for name in ("class_il", "task_il")}

    @property
    def class_names(self) -> list[str]:
        """Class names in the order of the outputs."""
        given = (self.result or {}).get("class_names")
        count = int(self.predictions["label"].max()) + 1 if self.predictions is not None else 0
        return [str(name) for name in given] if given else [str(number) for number in range(count)]


@dataclass(frozen=True)
class ReportGroup:
    """A group of runs with its key, its name and its rows of the result table.

    `method_name` is the name without the memory size: method, variant and the settings that distinguish it.
    """

    key: str
    name: str
    method_name: str
    seed_group: SeedGroup
    rows: tuple[TableRow, ...]

    @property
    def metadata(self) -> dict[str, Any]:
        """Method, stream, split and so on, which all runs of the group share."""
        return self.seed_group.metadata

    @property
    def row(self) -> TableRow:
        """The row that `itl table` shows first."""
        return self.rows[0]

    @property
    def set_name(self) -> str:
        """Stream, memory size and split: groups that agree in these can be compared."""
        fields = self.metadata
        split = "" if fields["split"] == "test" else f", {fields['split']} split"
        return f"{fields['stream']}, {fields['buffer']} images{split}"

    def samples(self, name: str) -> dict[int, float]:
        """A number of the results, such as `class_il`, by seed."""
        values = {int(result["seed"]): result.get(name) for result in self.seed_group.results}
        return {seed: value for seed, value in values.items() if value is not None}


@dataclass(frozen=True)
class ReportData:
    """The runs and groups of a report."""

    runs: list[ReportRun]
    groups: list[ReportGroup]

    @property
    def unfinished(self) -> list[ReportRun]:
        """The unfinished runs."""
        return [report_run for report_run in self.runs if report_run.result is None]

    def runs_of(self, group: ReportGroup) -> list[ReportRun]:
        """The runs of a group."""
        return [report_run for report_run in self.runs if any(report_run.run is run for run in group.seed_group.runs)]

    def group_of(self, report_run: ReportRun) -> ReportGroup | None:
        """The group of a run; None for an unfinished run or a second run of a seed."""
        return next((g for g in self.groups if any(run is report_run.run for run in g.seed_group.runs)), None)

    def first(self, group: ReportGroup) -> ReportRun:
        """The first run of a group, which represents it in charts of single runs."""
        return next(report_run for report_run in self.runs if report_run.run is group.seed_group.runs[0])


def report_data(runs: Sequence[Run]) -> ReportData:
    """Name and group the runs of a report; groups are in the order of their first runs."""
    names = _names([run.metadata for run in runs], NAME_FIELDS)
    names = [
        name if names.count(name) == 1 else f"{name} ({run.path.name})" for name, run in zip(names, runs, strict=True)
    ]
    report_runs = [ReportRun(f"r{k}", name, run) for k, (name, run) in enumerate(zip(names, runs, strict=True))]
    position = {id(run): k for k, run in enumerate(runs)}
    seed_groups = sorted(group_by_seed(runs), key=lambda group: min(position[id(run)] for run in group.runs))
    rows = [
        row
        for split in ("test", "validation")
        for section in build(runs, split=split, missing=False).sections
        for row in section.rows
    ]
    groups: list[ReportGroup] = []
    metadata = [group.metadata for group in seed_groups]
    titles = _names(metadata, NAME_FIELDS[:-1])
    methods = _names(metadata, ("stream", "split", "method", "variant"))
    for k, (group, title, method) in enumerate(zip(seed_groups, titles, methods, strict=True)):
        own_rows = tuple(row for row in rows if row.ours is not None and row.ours.runs[0] is group.runs[0])
        label = f" [{own_rows[0].label}]" if titles.count(title) > 1 and own_rows[0].label else ""
        earlier = [other.name for other in groups].count(title + label)
        label += f" ({earlier + 1})" if earlier else ""  # names are distinct: they are positions in charts
        groups.append(ReportGroup(f"c{k}", title + label, method + label, group, own_rows))
    return ReportData(report_runs, groups)


def _names(metadata: Sequence[dict[str, Any]], parts: Sequence[str]) -> list[str]:
    """Names made of the method and the fields that differ."""
    differ = [part for part in parts if len({str(fields.get(part)) for fields in metadata}) > 1]
    words = {"buffer": "|B| {}", "seed": "seed {}", "split": "{} split", "stream": "on {}"}
    order = ("method", "variant", "buffer", "stream", "split", "seed")
    out = []
    for fields in metadata:
        shown = [p for p in order if p == "method" or (p in differ and (fields.get(p) is not None) and p in parts)]
        out.append(", ".join(words.get(part, "{}").format(fields.get(part)) for part in shown))
    return out
