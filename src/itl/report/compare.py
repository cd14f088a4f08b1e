"""Comparisons of groups of runs: the ablation (the paper's Fig. 2), methods, buffer sizes, seconds."""

from __future__ import annotations

from collections.abc import Sequence

from itl.report.chart import Axis, Chart, Series
from itl.report.run_selection import ReportData, ReportGroup
from itl.report.stages import MEASURES
from itl.results.published import SOURCES, published

ABLATION = ("b", "b+lf", "b+ff", "b+hp+lf", "b+hp+ff+pd", "itl")  # in order of the stages added
SECTIONS = ("specialist", "memory", "tangent", "projection", "evaluation")


def comparison_charts(groups: Sequence[ReportGroup]) -> list[tuple[str, list[ReportGroup]]]:
    """The groups of each bar chart, with its title: those of one stream, split and buffer, the ablation separately.

    A single group gets a chart only if the report has no other group.
    """
    comparable: dict[tuple[str, str, int], list[ReportGroup]] = {}
    for group in groups:
        metadata = group.metadata
        comparable.setdefault((metadata["stream"], metadata["split"], metadata["buffer"]), []).append(group)
    out = []
    for (stream, split, buffer), candidates in comparable.items():
        where = f"{stream}, {buffer} images" + ("" if split == "test" else f", {split} split")
        steps = [group for group in candidates if _ablation_index(group) < len(ABLATION)]
        ablation = steps if len({_ablation_index(group) for group in steps}) > 2 else []
        others = [group for group in candidates if group not in ablation or _ablation_index(group) == len(ABLATION) - 1]
        out += [(f"The ablation: {where}", ablation)] if ablation else []
        out += [(f"Methods: {where}", others)] if len(others) > 1 or len(groups) == 1 else []
    return out


def bars(groups: Sequence[ReportGroup], measure: str = "class_il") -> Chart | None:
    """One bar per group, with the deviation over seeds, and the published results."""
    is_ablation = all(_ablation_index(group) < len(ABLATION) for group in groups)
    order = sorted(
        groups, key=lambda g: (_ablation_index(g) if is_ablation else 0, g.seed_group.mean("class_il").mean or 0.0)
    )
    names = _unique([_short_name(group) for group in order])
    means = [group.seed_group.mean(measure) for group in order]
    ours = Series(
        "ours",
        [mean.mean for mean in means],
        names,
        kind="bars",
        role="a",
        error=[mean.std for mean in means],
        hover=[
            f"{name}, seeds {', '.join(map(str, group.seed_group.seeds))}"
            for name, group in zip(names, order, strict=True)
        ],
    )
    published_series = []
    sources = dict.fromkeys(row.published.source for group in order for row in group.rows if row.published)
    for number, source in enumerate(sources):
        rows = {
            group.key: row for group in order for row in group.rows if row.published and row.published.source == source
        }
        marks = [
            (name, rows[g.key].published_score(measure)) for name, g in zip(names, order, strict=True) if g.key in rows
        ]
        marks = [(name, mean) for name, mean in marks if mean.mean is not None]
        if marks:
            published_series.append(
                Series(
                    f"published: {SOURCES[source][0]}",
                    [mean.mean for _, mean in marks],
                    [name for name, _ in marks],
                    kind="points",
                    role=("ink", "c", "d")[number % 3],
                    error=[mean.std for _, mean in marks],
                    hover=[f"{name}, {SOURCES[source][0]}" for name, _ in marks],
                )
            )
    known = [value for series in (ours, *published_series) for value in series.y if value is not None]
    if not known:
        return None
    stream, split, buffer = (order[0].metadata[name] for name in ("stream", "split", "buffer"))
    return Chart(
        f"{stream}, {buffer} images in memory" + ("" if split == "test" else f", {split} split"),
        x=Axis(categories=tuple(names)),
        y=Axis(f"{MEASURES[measure]}, %", 0.0, min(108.0, max(known) * 1.18 + 2)),
        series=(ours, *published_series),
    )


def buffers(groups: Sequence[ReportGroup], stream: str, measure: str = "class_il") -> Chart | None:
    """Accuracy by buffer size: ours with deviations, and published results of the same methods."""
    in_stream = [
        g
        for g in groups
        if g.metadata["stream"] == stream and g.metadata["split"] == "test" and g.metadata["buffer"] > 0
    ]
    sizes = {
        method: {g.metadata["buffer"] for g in in_stream if _short_name(g) == method}
        for method in map(_short_name, in_stream)
    }
    known = {result.method for result in published() if result.stream == stream}
    methods = [name for name, buffer_sizes in sizes.items() if len(buffer_sizes) > 1] or [
        name for name in sizes if name in known
    ]
    series = []
    for number, method in enumerate(methods):
        own_groups = sorted((g for g in in_stream if _short_name(g) == method), key=lambda g: g.metadata["buffer"])
        means = [group.seed_group.mean(measure) for group in own_groups]
        role = "abcdefgh"[number % 8]
        series.append(
            Series(
                method,
                [mean.mean for mean in means],
                [group.metadata["buffer"] for group in own_groups],
                role=role,
                error=[mean.std for mean in means],
                hover=[f"{method}, |B| {g.metadata['buffer']}, {len(g.seed_group.seeds)} seeds" for g in own_groups],
                width=2.0,
            )
        )
        results = [
            result
            for result in published()
            if (result.stream, result.method) == (stream, method) and result.buffer and result.source != "ablation"
        ]
        results = [result for result in results if getattr(result, measure) is not None]
        if results:
            series.append(
                Series(
                    f"{method}, published",
                    [getattr(result, measure) for result in results],
                    [float(result.buffer or 0) for result in results],
                    kind="points",
                    role=role,
                    error=[getattr(result, f"{measure}_std") for result in results],
                    hover=[f"{method}, |B| {result.buffer}, {SOURCES[result.source][0]}" for result in results],
                )
            )
    at = sorted({float(x) for drawn in series for x in drawn.x})
    if len(at) < 2:
        return None
    values = [value for drawn in series for value in drawn.y if value is not None]
    return Chart(
        f"{stream}: {MEASURES[measure]} by buffer size",
        x=Axis("images in memory", at[0] / 1.3, at[-1] * 1.3, log=True, ticks=tuple((x, f"{x:g}") for x in at)),
        y=Axis(f"{MEASURES[measure]}, %", max(0.0, min(values) - 6), min(104.0, max(values) + 6)),
        series=tuple(series),
    )


def seconds(report: ReportData) -> Chart | None:
    """Seconds of a run by section, one bar per group."""
    groups = list(reversed(report.groups))
    if not groups:
        return None
    names = tuple(_unique([group.name for group in groups]))
    spent = [group.seed_group.seconds() for group in groups]
    sections = [
        *SECTIONS,
        *dict.fromkeys(name for by_section in spent for name in by_section if name not in (*SECTIONS, "total")),
    ]
    series = tuple(
        Series(
            section,
            [by_section.get(section, 0.0) for by_section in spent],
            names,
            kind="bars",
            role={"specialist": "specialist", "tangent": "tangent", "projection": "projection"}.get(
                section, "abgh"[k % 4]
            ),
            hover=[f"{name}, {section}" for name in names],
        )
        for k, section in enumerate(sections)
        if any(by_section.get(section, 0.0) > 0 for by_section in spent)
    )
    return Chart(
        "Where the time went",
        x=Axis("seconds per run", low=0.0),
        y=Axis(categories=names),
        series=series,
        horizontal=True,
        stacked=True,
        unit="s",
    )


def _ablation_index(group: ReportGroup) -> int:
    method = group.metadata["method"]
    return ABLATION.index(method) if method in ABLATION and not group.metadata.get("variant") else len(ABLATION)


def _short_name(group: ReportGroup) -> str:
    """The name of a group within its stream and buffer: method, variant, settings."""
    return " ".join([str(group.metadata["method"]), *([group.row.label] if group.row.label else [])])


def _unique(names: Sequence[str]) -> list[str]:
    """Make names distinct, so that two bars never share a position."""
    seen: dict[str, int] = {}
    out = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        out.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return out
