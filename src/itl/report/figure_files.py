"""The report's charts as PNG and PDF files for papers, one column or one page wide, with embedded fonts."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, count
from pathlib import Path

from itl.atomic import atomic_write, make_folder
from itl.errors import UserError, unknown
from itl.report import compare, tasks
from itl.report.chart import Chart
from itl.report.matplotlib_figures import STYLE, draw, pyplot_for_files
from itl.report.policies import policies
from itl.report.run_selection import ReportData, ReportGroup, ReportRun, report_data
from itl.report.selectors import preference
from itl.report.tabs import MEASURE_CHOICES, charts_of, mean_charts
from itl.results import Run

COMPARISON_KINDS = ("averages", "paired", "ablation", "bars", "buffers", "policies", "seconds")
RUN_KINDS = ("stages", "breakdown", "matrix", "confusion", "pairs", "held", "arrivals")
MAX_DETAILED = 4  # configurations; for more, figures of single runs are drawn only on request


def write_figures(
    runs: Sequence[Run],
    folder: str | os.PathLike[str],
    kinds: Sequence[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Path]:
    """Draw figures of the report into `folder` as PNG and PDF.

    Args:
        runs: The runs, finished or not.
        folder: The folder; it is created.
        kinds: Kinds of figures, of `COMPARISON_KINDS` and `RUN_KINDS`. None: all, or for more than four configurations
            those that compare.
        progress: Called with the number of figures drawn so far and the number of all.

    Returns:
        The paths of the files.

    Raises:
        UserError: A kind is unknown, or the folder cannot be written.
    """
    for kind in kinds or ():
        if kind not in (*COMPARISON_KINDS, *RUN_KINDS):
            raise unknown("kind of figure", kind, [*COMPARISON_KINDS, *RUN_KINDS])
    pyplot = pyplot_for_files()
    report = report_data(runs)
    names = _names(report)
    drawn = list(figures(report, kinds))
    out = []
    try:
        make_folder(folder)
        for number, (key, chart) in enumerate(drawn, 1):
            file = "-".join(names.get(part) or re.sub(r"[^\w+.-]+", "_", part) for part in key.split("/"))
            figure = draw(chart)
            for ending in ("png", "pdf"):
                path = Path(folder) / f"{file}.{ending}"
                metadata = {"CreationDate": None} if ending == "pdf" else None
                with pyplot.rc_context(STYLE), atomic_write(path) as out_file:  # fonts are embedded when saving
                    figure.savefig(out_file, format=ending, dpi=300, metadata=metadata)
                out.append(path)
            pyplot.close(figure)
            if progress is not None:
                progress(number, len(drawn))
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror or error}; choose another --figures") from None
    return out


def figures(report: ReportData, kinds: Sequence[str] | None = None) -> Iterator[tuple[str, Chart]]:
    """The charts of some kinds, by key. None: as `write_figures` chooses."""
    many = len(report.groups) + len(report.unfinished) > MAX_DETAILED
    chosen = kinds or (COMPARISON_KINDS if many else (*COMPARISON_KINDS, *RUN_KINDS))
    for key, chart in chain(_comparisons(report), _run_charts(report) if {*chosen} & {*RUN_KINDS} else ()):
        if chart is not None and key.partition("/")[0].rstrip("0123456789") in chosen:
            yield key, chart


def _comparisons(report: ReportData) -> Iterator[tuple[str, Chart | None]]:
    for comparison in compare.comparisons(report.groups):
        for choice, draw_measure in comparison.draw.items():
            for measure, _ in MEASURE_CHOICES:
                yield f"{comparison.kind}/{choice}/{measure}", draw_measure(measure)
    for members in compare.comparable_sets(report.groups).values():
        reference = min(members, key=preference)
        for measure, _ in MEASURE_CHOICES:
            yield f"paired/{reference.key}/{measure}", compare.paired(members, reference, measure)
    for number, chart in enumerate(policies(report.groups)):
        yield f"policies{number}/class_il", chart
    yield "seconds", compare.seconds(report)


def _run_charts(report: ReportData) -> Iterator[tuple[str, Chart | None]]:
    """The charts of every group and of its first run."""
    first: list[tuple[ReportGroup | None, ReportRun]] = [(group, report.first(group)) for group in report.groups]
    first += [(None, report_run) for report_run in report.unfinished]
    for group, report_run in first:
        yield from charts_of(report_run)
        if group is None:
            continue
        if len(group.seed_group.seeds) > 1:
            yield from mean_charts(report, group)
        for measure, _ in MEASURE_CHOICES:
            yield f"matrix/{group.key}/{measure}", tasks.matrix(report.runs_of(group), measure)


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
