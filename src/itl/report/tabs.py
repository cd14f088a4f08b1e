"""The tabs of a report and the figures of each, with captions, selectors and charts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from itl.report import compare, memory, stages, tasks
from itl.report.chart import Chart, SharedLists, compact_json, encode, plain
from itl.report.image_sheets import ImageLoader, memory_gallery, mistake_gallery
from itl.report.policies import policies
from itl.report.run_selection import ReportData, ReportGroup, ReportRun
from itl.report.selectors import preference, selection
from itl.results.render import MEASURE_NAMES

MEASURE_CHOICES = [[measure, name] for measure, name in MEASURE_NAMES.items()]
MAX_CHART_CHARACTERS = 3_500_000  # of the charts of single runs
MAX_IMAGE_CHARACTERS = 1_500_000
MAX_MATRICES = 12  # side by side
MAX_TILES = 160  # images of one run's memory


@dataclass
class FigureSpec:
    """One figure of the page. `key` is a template for the key of its chart, such as `stages/{run}/{measure}`."""

    key: str
    title: str
    caption: str
    selectors: dict[str, list[list[str]]] = field(default_factory=dict)  # name: [value, label]
    kind: str = "chart"
    empty: str = ""


@dataclass
class Tab:
    """A tab of the page with its figures."""

    name: str
    views: list[FigureSpec]


@dataclass
class PageContents:
    """Tabs, and the JSON of all charts that their figures can show."""

    tabs: list[Tab]
    charts: dict[str, str]
    notes: list[str] = field(default_factory=list)
    lead: list[FigureSpec] = field(default_factory=list)  # figures at the top of the first tab
    first: dict[str, str] = field(default_factory=dict)  # initial values of the selectors
    pool: SharedLists = field(default_factory=SharedLists)  # lists that several charts refer to
    selection: dict[str, Any] = field(default_factory=dict)  # see `itl.report.selectors`


def contents(report: ReportData, data: str | None) -> PageContents:
    """Build the tabs for which these runs have data."""
    charts: dict[str, str] = {}
    pool = SharedLists()
    detailed, notes = _detail(report, charts, pool)
    runs = [[report_run.key, report_run.name] for report_run in detailed]
    finished = [[report_run.key, report_run.name] for report_run in detailed if report_run.result is not None]
    groups = sorted(report.groups, key=preference)
    means = [
        [group.key, f"{group.name}, mean of {len(group.seed_group.seeds)} seeds"]
        for group in groups
        if len(group.seed_group.seeds) > 1
    ]
    pictured = _pictures(report, detailed, charts, ImageLoader(data))
    several = len(report.groups) > 1
    tabs = [
        Tab("Stages", _stages([*means, *runs], charts, stages.tasks_with_curves(r.run.lines for r in detailed))),
        Tab("Tasks", _tasks(report, runs, finished, charts)),
        Tab("Compare", list(_compare(report, charts)) if several else []),
        Tab("Memory", _memory(runs, finished, charts, pictured)),
        Tab("Mistakes", _mistakes(finished, charts, pictured)),
        Tab("Time", _time(report, charts)),
    ]
    tabs = [tab for tab in tabs if tab.views]
    named = {tab.name: tab.views for tab in tabs}
    lead = named.get("Compare" if several else "Stages", [])[:1]
    return PageContents(tabs, charts, notes, lead, _first(groups, report, detailed), pool, selection(report))


def _first(groups: Sequence[ReportGroup], report: ReportData, detailed: Sequence[ReportRun]) -> dict[str, str]:
    """Initial values of the selectors: the first group in the order of preference, and its first run."""
    if not groups:
        return {"run": detailed[0].key} if detailed else {}
    return {"run": report.first(groups[0]).key, "group": groups[0].key, "reference": groups[0].key}


def _detail(report: ReportData, charts: dict[str, str], pool: SharedLists) -> tuple[list[ReportRun], list[str]]:
    """The charts of single runs and of means over seeds, for as many runs as fit.

    The order is: the first run of every group, the means, then the other runs.
    """
    groups = sorted(report.groups, key=preference)
    first = [report.first(group) for group in groups]
    others = [report_run for report_run in report.runs if all(report_run is not other for other in first)]
    averaged = [group for group in groups if len(group.seed_group.seeds) > 1]
    taken: list[ReportRun] = []
    size = 0
    sources: list[ReportRun | ReportGroup] = [*first, *averaged, *others]
    for source in sources:
        shared_before = len(pool.lists)
        drawn = mean_charts(report, source) if isinstance(source, ReportGroup) else charts_of(source)
        source_charts = {key: compact_json(pool.share(plain(chart))) for key, chart in drawn if chart is not None}
        size += sum(map(len, source_charts.values())) + len(compact_json(pool.lists[shared_before:]))
        if size > MAX_CHART_CHARACTERS and taken:
            break
        charts |= source_charts
        taken += [source] if isinstance(source, ReportRun) else []
    omitted = len(report.runs) - len(taken)
    note = f"Figures of single runs are shown for {len(taken)} of {len(report.runs)} runs, to limit the page's size."
    return [report_run for report_run in report.runs if any(report_run is other for other in taken)], [
        note
    ] if omitted else []


def charts_of(report_run: ReportRun) -> Iterator[tuple[str, Chart | None]]:
    """The charts of a single run by key; None if it has no data for one."""
    yield from _stage_charts(report_run.key, report_run.run.lines)
    if report_run.result is None:
        for measure, _ in MEASURE_CHOICES:
            yield f"matrix/{report_run.key}/{measure}", tasks.matrix([report_run], measure)
    yield f"confusion/{report_run.key}", tasks.confusion(report_run)
    yield f"pairs/{report_run.key}", tasks.pairs(report_run)
    yield f"held/{report_run.key}", memory.held(report_run)
    yield f"arrivals/{report_run.key}", memory.arrivals(report_run)


def mean_charts(report: ReportData, group: ReportGroup) -> Iterator[tuple[str, Chart | None]]:
    """Stages and curves of a group, averaged over its seeds."""
    yield from _stage_charts(
        group.key, stages.mean_lines([report_run.run.lines for report_run in report.runs_of(group)])
    )


def _stage_charts(key: str, lines: Sequence[stages.Line]) -> Iterator[tuple[str, Chart | None]]:
    timeline = stages.StageTimeline(lines)
    for measure, _ in MEASURE_CHOICES:
        yield f"stages/{key}/{measure}", stages.stages(timeline, measure)
        yield f"breakdown/{key}/{measure}", stages.breakdown(timeline, measure)


def _having(kind: str, runs: Sequence[list[str]], charts: dict[str, str]) -> list[list[str]]:
    """The runs that have a chart of this kind."""
    with_chart = {key.split("/")[1] for key in charts if key.startswith(f"{kind}/")}
    return [run for run in runs if run[0] in with_chart]


def _stages(runs: list[list[str]], charts: dict[str, str], last_task: int) -> list[FigureSpec]:
    drawn = _having("stages", runs, charts)
    if not drawn:
        return []
    choice = [["", "all tasks"], *([str(number), f"task {number}"] for number in range(1, last_task + 1))]
    return [
        FigureSpec(
            "stages/{run}/{measure}",
            "Accuracy through the stages",
            "For each task, a specialist is trained (S), a generalist is learned from the memory (tangent model, T) "
            "and projected back (P). Thin lines show the accuracy during a stage on a subset of the test images; thick "
            "lines show it at the end of a stage on all of them. T and P start with a drop, the half-pipe: the "
            "classifier has just been reinitialized. --curves 16 measures more points in the stages of a short run.",
            {"run": drawn, "measure": MEASURE_CHOICES},
        ),
        FigureSpec(
            "breakdown/{run}/{measure}",
            "Every task through training",
            "One line per task from the moment it is learned; the bold line is their mean. Select a task to highlight "
            "it.",
            {"run": _having("breakdown", runs, charts), "measure": MEASURE_CHOICES, "task": choice},
        ),
    ]


def _tasks(
    report: ReportData, runs: list[list[str]], finished: list[list[str]], charts: dict[str, str]
) -> list[FigureSpec]:
    chosen: list[list[str]] = []
    for group in sorted(report.groups, key=preference):
        group_runs = report.runs_of(group)
        for measure, _ in MEASURE_CHOICES:
            chart = tasks.matrix(group_runs, measure)
            if chart is not None:
                charts[f"matrix/{group.key}/{measure}"] = encode(chart)
        chosen.append([group.key, group.name])
    chosen += [run for run in _having("matrix", runs, charts) if run not in chosen]
    chosen = _having("matrix", chosen, charts)
    views = []
    if len(report.groups) == 1:
        views += _comparison(compare.comparisons(report.groups)[0], charts)
    words = (
        "Row: after learning task t. Column: accuracy on task k. A column from top to bottom shows how much of a task "
        "is forgotten."
    )
    if chosen:
        views.append(
            FigureSpec("matrix/{group}/{measure}", "Task by task", words, {"group": chosen, "measure": MEASURE_CHOICES})
        )
    if len(chosen) > 1:
        caption = f"The same matrices side by side, at most {MAX_MATRICES}."
        views.append(
            FigureSpec(
                "matrix/*/{measure}", "Side by side", caption, {"measure": MEASURE_CHOICES, "*": chosen}, kind="grid"
            )
        )
    confused = _having("confusion", finished, charts)
    if confused:
        words = "Row: true class. Column: class predicted by the final network, among all classes."
        views.append(FigureSpec("confusion/{run}", "Confusion matrix", words, {"run": confused}))
    return views


def _comparison(comparison: compare.Comparison, charts: dict[str, str]) -> list[FigureSpec]:
    """The figure of a comparison, if there is data for it."""
    choices = []
    for name, draw in comparison.draw.items():
        drawn = {measure: chart for measure, _ in MEASURE_CHOICES if (chart := draw(measure)) is not None}
        charts |= {f"{comparison.kind}/{name}/{measure}": encode(chart) for measure, chart in drawn.items()}
        choices += [[name, name]] if "class_il" in drawn else []
    key = f"{comparison.kind}/{{{comparison.selector}}}/{{measure}}"
    selectors = {comparison.selector: choices, "measure": MEASURE_CHOICES}
    return [FigureSpec(key, comparison.title, comparison.caption, selectors)] if choices else []


def _compare(report: ReportData, charts: dict[str, str]) -> Iterator[FigureSpec]:
    averages, *others = compare.comparisons(report.groups)
    yield from _comparison(averages, charts)
    yield from _paired(report.groups, charts)
    for comparison in others:
        yield from _comparison(comparison, charts)
    by_measure = {measure: policies(report.groups, measure) for measure, _ in MEASURE_CHOICES}
    for number, chart in enumerate(by_measure["class_il"]):
        for measure, _ in MEASURE_CHOICES:
            charts[f"policies{number}/{measure}"] = encode(by_measure[measure][number])
        caption = "Runs that differ in the memory's settings only."
        caption += " Horizontal lines are policies without this setting." if chart.levels else ""
        title = chart.title.replace(": Class-IL by ", ": memory policies by ")
        yield FigureSpec(f"policies{number}/{{measure}}", title, caption, {"measure": MEASURE_CHOICES})


def _paired(groups: Sequence[ReportGroup], charts: dict[str, str]) -> Iterator[FigureSpec]:
    """Differences between any two groups that can be compared."""
    references = []
    for members in compare.comparable_sets(sorted(groups, key=preference)).values():
        for reference in members:
            drawn = {measure: compare.paired(members, reference, measure) for measure, _ in MEASURE_CHOICES}
            found = {f"paired/{reference.key}/{measure}": encode(chart) for measure, chart in drawn.items() if chart}
            charts |= found
            references += [[reference.key, reference.name]] if found else []
    if references:
        yield FigureSpec(
            "paired/{reference}/{measure}",
            "Paired differences",
            "Each method minus the one it is compared with, on the seeds that both have: the mean difference and its "
            "95 % confidence interval (Student's t). An interval that does not include 0 speaks for a difference. A "
            "mark without an interval has one common seed.",
            {"reference": references, "measure": MEASURE_CHOICES},
        )


def _memory(
    runs: list[list[str]], finished: list[list[str]], charts: dict[str, str], pictured: set[str]
) -> list[FigureSpec]:
    views = []
    held = _having("held", runs, charts)
    if held:
        words = "Images of each class in the memory after each task."
        views.append(FigureSpec("held/{run}", "Content of the memory", words, {"run": held}))
    came = _having("arrivals", finished, charts)
    if came:
        words = "Each mark is an image of the final memory: its class and the step at which it was added."
        views.append(FigureSpec("arrivals/{run}", "When its images were added", words, {"run": came}))
    if held or came:
        seen = [run for run in finished if run[0] in pictured and f"sheet/{run[0]}" in charts]
        words = "Images of the final memory by class, each with its task."
        empty = "The record has no images of the memory; itl report --data DIR reads them from the dataset."
        views.append(
            FigureSpec("sheet/{run}", "Its images", words, {"run": seen or came or held}, kind="gallery", empty=empty)
        )
    return views


def _mistakes(finished: list[list[str]], charts: dict[str, str], pictured: set[str]) -> list[FigureSpec]:
    paired = _having("pairs", finished, charts)
    if not paired:
        return []
    empty = "The record has no images of the mistakes; itl report --data DIR reads them from the dataset."
    seen = [run for run in finished if f"wrong/{run[0]}" in charts] or paired
    return [
        FigureSpec(
            "pairs/{run}",
            "The most common confusions",
            "Test images by true class and predicted class.",
            {"run": paired},
        ),
        FigureSpec(
            "wrong/{run}",
            "Informative mistakes",
            "The most confident mistakes of the most common confusions.",
            {"run": seen},
            kind="gallery",
            empty=empty,
        ),
    ]


def _time(report: ReportData, charts: dict[str, str]) -> list[FigureSpec]:
    chart = compare.seconds(report)
    if chart is None:
        return []
    charts["seconds"] = encode(chart)
    return [FigureSpec("seconds", "Where the time went", "Mean seconds of a run by section.")]


def _pictures(
    report: ReportData, report_runs: Sequence[ReportRun], charts: dict[str, str], loader: ImageLoader
) -> set[str]:
    """Image sheets of as many runs as fit: the first run of every group, then the others."""
    first = {id(report.first(group)) for group in report.groups}
    order = sorted(
        (report_run for report_run in report_runs if report_run.result is not None),
        key=lambda report_run: id(report_run) not in first,
    )
    limit = MAX_TILES if len(order) <= 4 else max(40, MAX_TILES * 4 // len(order))
    size = 0
    shown: set[str] = set()
    for report_run in order:
        images = loader.load(report_run)
        if images is None:
            continue
        sheets = {
            "sheet": memory_gallery(report_run, images, limit),
            "wrong": mistake_gallery(report_run, images, max(12, limit // 4)),
        }
        size += sum(len(sheet["sheet"]["uri"]) for sheet in sheets.values() if sheet)
        if size > MAX_IMAGE_CHARACTERS and shown:
            break
        charts |= {f"{kind}/{report_run.key}": compact_json(sheet) for kind, sheet in sheets.items() if sheet}
        shown.add(report_run.key)
    return shown
