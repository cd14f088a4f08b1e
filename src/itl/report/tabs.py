"""Which figures a report has: tabs of views, each with its words, its selectors and its charts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from itl.report import compare, memory, stages, tasks
from itl.report.chart import Chart, Pool, plain
from itl.report.image_sheets import Album, memory_gallery, mistake_gallery
from itl.report.policies import policies
from itl.report.run_selection import Shown, Subject

MEASURES = [["class_il", "Class-IL"], ["task_il", "Task-IL"]]
DETAIL = 3_500_000  # characters of charts of single runs in one page
PICTURES = 1_500_000  # and of pictures
GRID = 12  # matrices side by side
TILES = 160  # pictures of one run's memory


@dataclass
class View:
    """One figure of the page. `key` names its chart by the selectors' values, `{run}/{measure}`."""

    key: str
    title: str
    caption: str
    selectors: dict[str, list[list[str]]] = field(default_factory=dict)  # name: [value, label]
    kind: str = "chart"
    empty: str = ""


@dataclass
class Tab:
    """A tab of the page."""

    name: str
    views: list[View]


@dataclass
class Contents:
    """Tabs, and everything their views can show, as JSON values."""

    tabs: list[Tab]
    charts: dict[str, Any]
    notes: list[str]
    lead: list[View]  # what the first tab begins with
    first: dict[str, str]  # what selectors begin with
    pool: Pool  # lists that charts share


def contents(subject: Subject, data: str | None) -> Contents:
    """All tabs that these runs have something for."""
    charts: dict[str, Any] = {}
    pool = Pool()
    detailed, notes = _detail(subject, charts, pool)
    runs = [[shown.key, shown.name] for shown in detailed]
    finished = [[shown.key, shown.name] for shown in detailed if shown.result is not None]
    pictured = _pictures(subject, detailed, charts, Album(data))
    tabs = [
        Tab("Stages", _stages(runs, charts)),
        Tab("Tasks", _tasks(subject, runs, finished, charts)),
        Tab("Compare", list(_compare(subject, charts))),
        Tab("Memory", _memory(runs, finished, charts, pictured)),
        Tab("Mistakes", _mistakes(finished, charts, pictured)),
        Tab("Time", _time(subject, charts)),
    ]
    tabs = [tab for tab in tabs if tab.views]
    named = {tab.name: tab.views for tab in tabs}
    lead = named.get("Compare" if len(subject.groups) > 1 else "Stages", [])[:1]
    return Contents(tabs, charts, notes, lead, _first(subject, detailed), pool)


def _first(subject: Subject, detailed: Sequence[Shown]) -> dict[str, str]:
    """Selectors begin with the cell that reached most, and its first run."""
    best = max(subject.groups, key=lambda group: group.cell.mean("class_il").mean or 0.0, default=None)
    if best is None:
        return {"run": detailed[0].key} if detailed else {}
    return {"run": subject.first(best).key, "cell": best.key}


def _detail(subject: Subject, charts: dict[str, Any], pool: Pool) -> tuple[list[Shown], list[str]]:
    """The charts of single runs, of as many runs as a page can hold: every cell's first run before its others."""
    first = [subject.first(group) for group in subject.groups]
    order = [*first, *(shown for shown in subject.runs if all(shown is not one for one in first))]
    taken: list[Shown] = []
    size = 0
    for shown in order:
        known = len(pool.lists)
        made = {key: pool.share(plain(chart)) for key, chart in charts_of(shown) if chart is not None}
        size += len(json.dumps([made, pool.lists[known:]]))
        if size > DETAIL and taken:
            break
        charts |= made
        taken.append(shown)
    left = len(order) - len(taken)
    note = f"Figures of single runs are shown for {len(taken)} of {len(order)} runs, to keep the page small."
    return [shown for shown in subject.runs if any(shown is one for one in taken)], [note] if left else []


def charts_of(shown: Shown) -> Iterator[tuple[str, Chart | None]]:
    """The charts of a single run, by key; None where it has nothing for one."""
    for measure, _ in MEASURES:
        yield f"stages/{shown.key}/{measure}", stages.stages(shown, measure)
        yield f"breakdown/{shown.key}/{measure}", stages.breakdown(shown, measure)
        if shown.result is None:
            yield f"matrix/{shown.key}/{measure}", tasks.matrix([shown], measure)
    yield f"confusion/{shown.key}", tasks.confusion(shown)
    yield f"pairs/{shown.key}", tasks.pairs(shown)
    yield f"held/{shown.key}", memory.held(shown)
    yield f"arrivals/{shown.key}", memory.arrivals(shown)


def _having(kind: str, runs: Sequence[list[str]], charts: dict[str, Any]) -> list[list[str]]:
    """The runs that have a chart of a kind."""
    there = {key.split("/")[1] for key in charts if key.startswith(f"{kind}/")}
    return [run for run in runs if run[0] in there]


def _stages(runs: list[list[str]], charts: dict[str, Any]) -> list[View]:
    drawn = _having("stages", runs, charts)
    if not drawn:
        return []
    return [
        View(
            "stages/{run}/{measure}",
            "Accuracy through the stages",
            "Each task trains a specialist (S), learns a generalist from the memory alone (tangent plane, T) and "
            "projects it back (P). Thin lines follow accuracy within a stage on some of the test images; thick lines "
            "are a stage's end on all of them. The drop where T and P begin is the half-pipe: the classifier has "
            "just been redrawn. A short run has few points within its stages unless asked for more (--curves 16).",
            {"run": drawn, "measure": MEASURES},
        ),
        View(
            "breakdown/{run}/{measure}",
            "Every task through training",
            "One line for each task from the moment it is learned, the bold line is their mean. Choose a task to "
            "single it out.",
            {"run": _having("breakdown", runs, charts), "measure": MEASURES, "task": _task_choice(charts)},
        ),
    ]


def _task_choice(charts: dict[str, Any]) -> list[list[str]]:
    tags = {one.get("tag") for key, chart in charts.items() if key.startswith("breakdown/") for one in chart["series"]}
    numbers = sorted(int(tag) for tag in tags if tag and tag.isdigit())
    return [["", "all tasks"], *([str(number), f"task {number}"] for number in numbers)]


def _tasks(subject: Subject, runs: list[list[str]], finished: list[list[str]], charts: dict[str, Any]) -> list[View]:
    chosen: list[list[str]] = []
    for group in subject.groups:
        mine = [shown for shown in subject.runs if any(shown.run is run for run in group.cell.runs)]
        for measure, _ in MEASURES:
            chart = tasks.matrix(mine, measure)
            if chart is not None:
                charts[f"matrix/{group.key}/{measure}"] = plain(chart)
        chosen.append([group.key, group.name + (f", mean of {len(mine)} seeds" if len(mine) > 1 else "")])
    chosen += [run for run in _having("matrix", runs, charts) if run not in chosen]
    chosen = _having("matrix", chosen, charts)
    views = []
    words = (
        "Row: after learning task t. Column: the accuracy on task k. Down a column one sees a task being forgotten, "
        "or kept."
    )
    if chosen:
        views.append(View("matrix/{cell}/{measure}", "Task by task", words, {"cell": chosen, "measure": MEASURES}))
    if len(chosen) > 1:
        few = chosen[:GRID]
        more = "" if len(few) == len(chosen) else f" The first {GRID} of {len(chosen)}."
        caption = f"The same, side by side.{more}"
        views.append(View("matrix/*/{measure}", "Side by side", caption, {"measure": MEASURES, "*": few}, kind="grid"))
    confused = _having("confusion", finished, charts)
    if confused:
        words = "Row: what an image is. Column: what the final network takes it for, among all classes."
        views.append(View("confusion/{run}", "Confusion matrix", words, {"run": confused}))
    return views


def _compare(subject: Subject, charts: dict[str, Any]) -> Iterator[View]:
    groups = subject.groups
    for number, (title, alike) in enumerate(compare.side_by_side(groups)):
        published = any(row.published for group in alike for row in group.rows)
        drawn = {measure: compare.bars(alike, measure) for measure, _ in MEASURES}
        if len(alike) > 1 or published:
            charts |= {f"bars{number}/{measure}": plain(chart) for measure, chart in drawn.items() if chart is not None}
            caption = "Bars are ours, with the standard deviation over seeds."
            caption += " Open marks are published figures." if published else ""
            yield View(f"bars{number}/{{measure}}", title, caption, {"measure": MEASURES})
    for number, stream in enumerate(dict.fromkeys(group.cell.facts["stream"] for group in groups)):
        for measure, _ in MEASURES:
            chart = compare.buffers(groups, stream, measure)
            if chart is not None:
                charts[f"buffers{number}/{measure}"] = plain(chart)
        if f"buffers{number}/class_il" in charts:
            caption = "Lines are ours; open marks are published figures of the same methods. The axis is logarithmic."
            yield View(f"buffers{number}/{{measure}}", f"The memory's size: {stream}", caption, {"measure": MEASURES})
    by_measure = {measure: policies(groups, measure) for measure, _ in MEASURES}
    for number, chart in enumerate(by_measure["class_il"]):
        for measure, _ in MEASURES:
            charts[f"policies{number}/{measure}"] = plain(by_measure[measure][number])
        caption = "Cells that differ in the memory's settings alone."
        caption += " Horizontal lines are policies without such a number." if chart.levels else ""
        yield View(f"policies{number}/{{measure}}", chart.title, caption, {"measure": MEASURES})


def _memory(runs: list[list[str]], finished: list[list[str]], charts: dict[str, Any], pictured: set[str]) -> list[View]:
    views = []
    held = _having("held", runs, charts)
    if held:
        words = "How many images of each class the memory holds after each task."
        views.append(View("held/{run}", "What the memory holds", words, {"run": held}))
    came = _having("arrivals", finished, charts)
    if came:
        words = "Each mark is an image that is in memory at the end: its class, and the step at which it was taken in."
        views.append(View("arrivals/{run}", "When its images came in", words, {"run": came}))
    if held or came:
        seen = [run for run in finished if run[0] in pictured and f"sheet/{run[0]}" in charts]
        words = "The images themselves by class, each with the task it came with."
        empty = "The record has no pictures of the memory; itl report --data DIR takes them from the dataset."
        views.append(
            View("sheet/{run}", "Its images", words, {"run": seen or came or held}, kind="gallery", empty=empty)
        )
    return views


def _mistakes(finished: list[list[str]], charts: dict[str, Any], pictured: set[str]) -> list[View]:
    paired = _having("pairs", finished, charts)
    if not paired:
        return []
    empty = "The record has no pictures of them; itl report --data DIR takes them from the dataset."
    seen = [run for run in finished if f"wrong/{run[0]}" in charts] or paired
    return [
        View("pairs/{run}", "The commonest confusions", "Test images of a class, taken for another.", {"run": paired}),
        View(
            "wrong/{run}",
            "Wrong predictions worth a look",
            "Of the commonest confusions the ones the network was surest of.",
            {"run": seen},
            kind="gallery",
            empty=empty,
        ),
    ]


def _time(subject: Subject, charts: dict[str, Any]) -> list[View]:
    chart = compare.seconds(subject)
    if chart is None:
        return []
    charts["seconds"] = plain(chart)
    return [View("seconds", "Where the time went", "Mean seconds of a run by what was being done.")]


def _pictures(subject: Subject, shown: Sequence[Shown], charts: dict[str, Any], album: Album) -> set[str]:
    """Sheets of pictures, of as many runs as a page can hold: every cell's first run before its others."""
    first = {id(subject.first(group)) for group in subject.groups}
    order = sorted((one for one in shown if one.result is not None), key=lambda one: id(one) not in first)
    limit = TILES if len(order) <= 4 else max(40, TILES * 4 // len(order))
    size = 0
    out: set[str] = set()
    for one in order:
        found = album.of(one)
        if found is None:
            continue
        sheets = {"sheet": memory_gallery(one, found, limit), "wrong": mistake_gallery(one, found, max(12, limit // 4))}
        size += sum(len(sheet["sheet"]["uri"]) for sheet in sheets.values() if sheet)
        if size > PICTURES and out:
            break
        charts |= {f"{kind}/{one.key}": sheet for kind, sheet in sheets.items() if sheet}
        out.add(one.key)
    return out
