"""Comparisons of groups of runs: over tasks, in pairs, the ablation (the paper's Fig. 2), memory sizes, seconds."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from itl.report.chart import ROLES, Axis, Chart, Series, value_range
from itl.report.run_selection import ReportData, ReportGroup
from itl.report.selectors import preference
from itl.results.published import SOURCES, published
from itl.results.render import MEASURE_NAMES
from itl.results.seed_groups import MeanStd

ABLATION = ("b", "b+lf", "b+ff", "b+hp+lf", "b+hp+ff+pd", "itl")  # in order of the stages added
SECTION_ROLES = {"specialist": "specialist", "memory": "b", "tangent": "tangent", "projection": "projection"}
SECTION_ROLES |= {"evaluation": "a", "saving": "h", "closing": "d"}
Samples = Mapping[int, float]  # by seed


def comparable_sets(groups: Sequence[ReportGroup]) -> dict[str, list[ReportGroup]]:
    """The groups of one stream, split and memory size, by what they have in common."""
    sets: dict[str, list[ReportGroup]] = {}
    for group in groups:
        sets.setdefault(group.set_name, []).append(group)
    return sets


def ablation_of(groups: Sequence[ReportGroup]) -> list[ReportGroup]:
    """The groups that are steps of the paper's ablation; empty for fewer than three of its steps."""
    steps = [group for group in groups if _ablation_index(group) < len(ABLATION)]
    return steps if len({_ablation_index(group) for group in steps}) > 2 else []


def methods_of(groups: Sequence[ReportGroup]) -> list[ReportGroup]:
    """The groups that are not in the ablation, and ITL; empty for fewer than two."""
    ablation = ablation_of(groups)
    others = [group for group in groups if group not in ablation or _ablation_index(group) == len(ABLATION) - 1]
    return others if len(others) > 1 else []


def _series(
    name: str, groups: Sequence[ReportGroup], samples: Sequence[Samples], hover: Sequence[str], **options: Any
) -> Series:
    """A series of means over seeds, one mark per group."""
    means = [MeanStd.of(list(values.values())) for values in samples]
    error = [mean.interval if options.get("interval") == "ci95" else mean.std for mean in means]
    keys = [group.key for group in groups]
    return Series(
        name, [mean.mean for mean in means], error=error, hover=hover, groups=keys, samples=list(samples), **options
    )


def averages(groups: Sequence[ReportGroup], measure: str = "class_il") -> Chart | None:
    """Average accuracy over the tasks seen so far, after each task: a line per group, a band over its seeds."""
    tasks = max((len(group.seed_group.results[0][f"{measure}_matrix"]) for group in groups), default=0)
    series = []
    order = [group.key for group in sorted(groups, key=preference)]  # the first methods have different colors
    for group in sorted(groups, key=lambda g: -(g.seed_group.mean(measure).mean or 0.0)):
        matrices = {int(result["seed"]): result[f"{measure}_matrix"] for result in group.seed_group.results}
        shown = min(map(len, matrices.values()))
        samples = [
            {seed: statistics.fmean(matrix[task][: task + 1]) for seed, matrix in matrices.items()}
            for task in range(shown)
        ]
        hover = [f"{group.name}, after task {task + 1}" for task in range(shown)]
        style = {"role": ROLES[order.index(group.key) % len(ROLES)], "width": 2.0, "band": True}
        at = [float(task + 1) for task in range(shown)]
        series.append(_series(group.name, [group] * shown, samples, hover, x=at, **style))
    if tasks < 2:
        return None
    low, high = value_range(series)
    ticks = tuple((float(task), str(task)) for task in range(1, tasks + 1, -(-tasks // 12)))
    return Chart(
        f"Average {MEASURE_NAMES[measure]} against tasks seen: {groups[0].set_name}",
        x=Axis("tasks seen", 1.0, float(tasks), ticks=ticks),
        y=Axis(f"average {MEASURE_NAMES[measure]}, %", max(0.0, low - 4), high + 4),
        series=tuple(series),
        line_labels=True,
    )


def paired(groups: Sequence[ReportGroup], reference: ReportGroup, measure: str = "class_il") -> Chart | None:
    """Mean difference of each group to the reference over common seeds, with its 95 % interval."""
    own = reference.samples(measure)
    found = []
    for group in groups:
        values = group.samples(measure)
        common = {seed: values[seed] - own[seed] for seed in values if seed in own}
        if common and group is not reference:
            found.append((group, common))
    found.sort(key=lambda pair: statistics.fmean(pair[1].values()))
    if not found:
        return None
    names = [group.name for group, _ in found]
    hover = [f"{group.name} minus {reference.name}, {_seeds(common)}" for group, common in found]
    differences = [common for _, common in found]
    style = {"kind": "points", "role": "a", "interval": "ci95", "x": names}
    series = _series("difference", [group for group, _ in found], differences, hover, **style)
    return Chart(
        f"{MEASURE_NAMES[measure]} minus that of {reference.name}, same seeds",
        x=Axis(f"difference in {MEASURE_NAMES[measure]}, points"),
        y=Axis(categories=tuple(names)),
        series=(series,),
        rules=(0.0,),
        horizontal=True,
        unit="points",
    )


def _seeds(samples: Samples) -> str:
    return "1 seed" if len(samples) == 1 else f"{len(samples)} seeds"


def bars(groups: Sequence[ReportGroup], measure: str = "class_il") -> Chart | None:
    """One bar per group, with the deviation over seeds, and the published results."""
    is_ablation = all(_ablation_index(group) < len(ABLATION) for group in groups)
    order = sorted(
        groups, key=lambda g: (_ablation_index(g) if is_ablation else 0, g.seed_group.mean("class_il").mean or 0.0)
    )
    names = [group.name for group in order]
    samples = [group.samples(measure) for group in order]
    hover = [f"{group.name}, seeds {', '.join(map(str, group.seed_group.seeds))}" for group in order]
    ours = _series("ours", order, samples, hover, x=names, kind="bars", role="a")
    series = [ours, *_published_bars(order, measure)]
    _, top = value_range(series)
    return Chart(
        f"{MEASURE_NAMES[measure]} after the last task: {order[0].set_name}",
        x=Axis(categories=tuple(names)),
        y=Axis(f"{MEASURE_NAMES[measure]}, %", 0.0, top * 1.05 + 2),
        series=tuple(series),
    )


def _published_bars(groups: Sequence[ReportGroup], measure: str) -> Iterator[Series]:
    """The published results of these groups, one series per source."""
    rows = [(group, row) for group in groups for row in group.rows if row.published]
    for number, source in enumerate(dict.fromkeys(row.published.source for _, row in rows if row.published)):
        marks = [
            (group, row.published_score(measure))
            for group, row in rows
            if row.published and row.published.source == source and row.published_score(measure).mean is not None
        ]
        if marks:
            yield Series(
                f"published: {SOURCES[source][0]}",
                [mean.mean for _, mean in marks],
                [group.name for group, _ in marks],
                kind="points",
                role=("ink", "c", "d")[number % 3],
                error=[mean.std for _, mean in marks],
                hover=[f"{group.name}, {SOURCES[source][0]}" for group, _ in marks],
                groups=[group.key for group, _ in marks],
            )


def buffers(groups: Sequence[ReportGroup], stream: str, measure: str = "class_il") -> Chart | None:
    """Accuracy by memory size: ours with deviations, and published results of the same methods."""
    methods: dict[str, list[ReportGroup]] = {}
    for group in sorted(groups, key=lambda group: group.metadata["buffer"]):
        if (group.metadata["stream"], group.metadata["split"]) == (stream, "test") and group.metadata["buffer"] > 0:
            methods.setdefault(group.method_name, []).append(group)
    known = {result.method for result in published() if result.stream == stream}
    several = {name for name, members in methods.items() if len(members) > 1} or methods.keys() & known
    series: list[Series] = []
    for number, (name, members) in enumerate((n, m) for n, m in methods.items() if n in several):
        role = ROLES[number % len(ROLES)]
        samples = [group.samples(measure) for group in members]
        hover = [f"{name}, |B| {g.metadata['buffer']}, {_seeds(s)}" for g, s in zip(members, samples, strict=True)]
        at = [group.metadata["buffer"] for group in members]
        series.append(_series(name, members, samples, hover, x=at, role=role, width=2.0))
        results = [
            result
            for result in published()
            if (result.stream, result.method) == (stream, name) and result.buffer and result.source != "ablation"
        ]
        results = [result for result in results if getattr(result, measure) is not None]
        if results:
            series.append(
                Series(
                    f"{name}, published",
                    [getattr(result, measure) for result in results],
                    [float(result.buffer or 0) for result in results],
                    kind="points",
                    role=role,
                    error=[getattr(result, f"{measure}_std") for result in results],
                    hover=[f"{name}, |B| {result.buffer}, {SOURCES[result.source][0]}" for result in results],
                    groups=[members[0].key] * len(results),
                )
            )
    at = sorted({float(x) for drawn in series for x in drawn.x})
    if len(at) < 2:
        return None
    low, high = value_range(series)
    return Chart(
        f"{stream}: {MEASURE_NAMES[measure]} by memory size",
        x=Axis("images in memory", at[0] / 1.3, at[-1] * 1.3, log=True, ticks=tuple((x, f"{x:g}") for x in at)),
        y=Axis(f"{MEASURE_NAMES[measure]}, %", max(0.0, low - 4), high + 4),
        series=tuple(series),
        line_labels=True,
    )


def seconds(report: ReportData) -> Chart | None:
    """Seconds of a run by section, one bar per group."""
    groups = list(reversed(report.groups))
    if not groups:
        return None
    names = [group.name for group in groups]
    spent = [{int(r["seed"]): r["seconds"] for r in group.seed_group.results} for group in groups]
    found = dict.fromkeys(name for by_seed in spent for sections in by_seed.values() for name in sections)
    sections = [*SECTION_ROLES, *(name for name in found if name not in (*SECTION_ROLES, "total"))]
    unused = iter("cefg" * len(sections))
    series = []
    for section in sections:
        samples = [{seed: times.get(section, 0.0) for seed, times in by_seed.items()} for by_seed in spent]
        if any(any(values.values()) for values in samples):
            role = SECTION_ROLES.get(section) or next(unused)
            hover = [f"{name}, {section}" for name in names]
            series.append(_series(section, groups, samples, hover, x=names, kind="bars", role=role))
    return Chart(
        "Where the time went",
        x=Axis("seconds per run", low=0.0),
        y=Axis(categories=tuple(names)),
        series=tuple(series),
        horizontal=True,
        stacked=True,
        unit="s",
    )


@dataclass(frozen=True)
class Comparison:
    """A figure with one chart for each choice (a comparable set, or a stream) and measure.

    `draw` maps each choice to the function that draws the chart of one measure.
    """

    kind: str
    title: str
    caption: str
    selector: str  # set or stream
    draw: dict[str, Callable[[str], Chart | None]]


def comparisons(groups: Sequence[ReportGroup]) -> list[Comparison]:
    """All comparisons of groups of runs."""
    sets = comparable_sets(groups)
    several = {name: members for name, members in sets.items() if len(members) > 1 or len(groups) == 1}
    ablations = {name: found for name, members in sets.items() if (found := ablation_of(members))}
    methods = {name: found for name, members in sets.items() if (found := methods_of(members))}
    published_too = any(row.published for group in groups for row in group.rows)
    caption = "Bars are our results, with the standard deviation over seeds."
    caption += " Open marks are published results." if published_too else ""
    return [
        Comparison(
            "averages",
            "Average accuracy against tasks seen",
            "After each task: mean accuracy on the tasks seen so far. Bands are ± one standard deviation over seeds.",
            "set",
            {name: partial(averages, members) for name, members in several.items()},
        ),
        Comparison(
            "ablation",
            "The ablation",
            caption,
            "set",
            {name: partial(bars, steps) for name, steps in ablations.items()},
        ),
        Comparison("bars", "Methods", caption, "set", {name: partial(bars, found) for name, found in methods.items()}),
        Comparison(
            "buffers",
            "Memory size",
            "Lines are ours; open marks are published results of the same methods. The x axis is logarithmic. Lines "
            "are shifted slightly so that their marks do not cover each other.",
            "stream",
            {
                stream: partial(buffers, groups, stream)
                for stream in dict.fromkeys(g.metadata["stream"] for g in groups)
            },
        ),
    ]


def _ablation_index(group: ReportGroup) -> int:
    method = group.metadata["method"]
    return ABLATION.index(method) if method in ABLATION and not group.metadata.get("variant") else len(ABLATION)
