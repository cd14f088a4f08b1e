"""The report's charts as PNG and PDF files for papers, one column or one page wide, with embedded fonts."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, count
from pathlib import Path

from itl.atomic import atomic_write, make_folder
from itl.errors import UserError
from itl.report import compare, tasks
from itl.report.chart import Chart
from itl.report.matplotlib_figures import STYLE, draw, pyplot_for_files
from itl.report.policies import policies
from itl.report.run_selection import ReportData, ReportGroup, ReportRun, report_data
from itl.report.tabs import MEASURES, charts_of
from itl.results import Run


def write_figures(runs: Sequence[Run], folder: str | os.PathLike[str]) -> list[Path]:
    """Draw every figure of the report into `folder` as PNG and PDF and return the paths."""
    pyplot = pyplot_for_files()
    report = report_data(runs)
    names = _names(report)
    out = []
    try:
        make_folder(folder)
        for key, chart in figures(report):
            file = "-".join(names.get(part, part) for part in key.split("/"))
            figure = draw(chart)
            for ending in ("png", "pdf"):
                path = Path(folder) / f"{file}.{ending}"
                metadata = {"CreationDate": None} if ending == "pdf" else None
                with pyplot.rc_context(STYLE), atomic_write(path) as out_file:  # fonts are embedded when saving
                    figure.savefig(out_file, format=ending, dpi=300, metadata=metadata)
                out.append(path)
            pyplot.close(figure)
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror or error}; choose another --figures") from None
    return out


def figures(report: ReportData) -> Iterator[tuple[str, Chart]]:
    """The charts of every group and of its first run, by key."""
    first: list[tuple[ReportGroup | None, ReportRun]] = [(group, report.first(group)) for group in report.groups]
    first += [(None, report_run) for report_run in report.unfinished]
    for group, report_run in first:
        for key, chart in charts_of(report_run):
            if chart is not None:
                yield key, chart
        if group is not None:
            group_runs = report.runs_of(group)
            for measure, _ in MEASURES:
                chart = tasks.matrix(group_runs, measure)
                if chart is not None:
                    yield f"matrix/{group.key}/{measure}", chart
    for number, (_, comparable) in enumerate(compare.comparison_charts(report.groups)):
        for measure, _ in MEASURES:
            chart = compare.bars(comparable, measure)
            if chart is not None:
                yield f"bars{number}/{measure}", chart
    for number, stream in enumerate(dict.fromkeys(group.metadata["stream"] for group in report.groups)):
        chart = compare.buffers(report.groups, stream)
        if chart is not None:
            yield f"buffers{number}/class_il", chart
    for number, chart in enumerate(policies(report.groups)):
        yield f"policies{number}/class_il", chart
    spent = compare.seconds(report)
    if spent is not None:
        yield "seconds", spent


def _names(report: ReportData) -> dict[str, str]:
    """File names of runs and groups by key, distinct even where case is ignored."""
    names = dict(
        zip(
            (report_run.key for report_run in report.runs),
            _folders([report_run.run.path for report_run in report.runs]),
            strict=True,
        )
    )
    for group in report.groups:
        names[group.key] = "mean-" + "".join(c if c.isalnum() or c in "+-." else "_" for c in group.name)
    taken: set[str] = set()
    for key, name in names.items():
        candidates = chain([name], (f"{name}-{number}" for number in count(2)))
        names[key] = next(candidate for candidate in candidates if candidate.casefold() not in taken)
        taken.add(names[key].casefold())
    return names


def _folders(paths: Sequence[Path]) -> list[str]:
    """The folder names, preceded by as much of the path as makes them distinct."""
    all_parts = [path.absolute().parts[1:] for path in paths]
    ends = [[parts[-depth:] for depth in range(1, len(parts) + 1)] for parts in all_parts]
    counts = Counter(end for ends_of_path in ends for end in ends_of_path)
    shortest = (
        next((end for end in ends_of_path if counts[end] == 1), parts)
        for ends_of_path, parts in zip(ends, all_parts, strict=True)
    )
    return ["-".join(end) for end in shortest]
