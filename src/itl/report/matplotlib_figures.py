"""The report's charts drawn with matplotlib."""

from __future__ import annotations

import os
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from itl.atomic import atomic_write
from itl.errors import UserError
from itl.report.chart import Axis, Chart, Series
from itl.report.run_selection import ReportRun
from itl.report.stages import stages
from itl.results import read_run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMN_WIDTH, PAGE_WIDTH = 3.35, 6.9  # inches, of a two-column page
COLORS = {"specialist": "#a02c2c", "tangent": "#2c6e2c", "projection": "#b86e00", "ink": "#222222"}
COLORS |= {"a": "#1f5fa8", "b": "#b3470e", "c": "#00755a", "d": "#8a3d84", "e": "#6b5b00", "f": "#a31545"}
COLORS |= {"g": "#48606f", "h": "#3b3fa0"}
MAX_LABEL_WIDTH = 24  # characters; longer labels are wrapped
MAX_NAMED_SERIES = 24
LABEL_GAP = 0.055  # between the names of two lines, as a fraction of the height
MAX_LABELED_BANDS = 36  # more stages leave no room for letters
BAND_COLORS = {"specialist": "#f6d9d9", "tangent": "#d9ecd9", "projection": "#f6ecc4"}
DASHES = dict(
    zip("abcdefgh", ("-", "--", ":", "-.", (0, (6, 2)), (0, (4, 1, 1, 1)), (0, (1, 1)), (0, (8, 3))), strict=True)
)
SYMBOLS = dict(zip("abcdefgh", "osD^PX*h", strict=True)) | {"specialist": "o", "tangent": "D", "projection": "s"}
HATCHES = {"tangent": "////", "projection": "xxx", "b": "\\\\\\", "c": "||", "g": "..", "h": "--"}
STYLE: dict[str, Any] = {"pdf.fonttype": 42, "ps.fonttype": 42, "font.family": "DejaVu Sans", "hatch.linewidth": 0.5}
STYLE |= {"font.size": 7, "axes.titlesize": 7.5, "legend.fontsize": 6, "axes.linewidth": 0.6}
STYLE |= {"text.parse_math": False, "text.usetex": False}  # a class name such as US$ is not a formula
STYLE |= {"xtick.major.width": 0.6, "ytick.major.width": 0.6, "axes.spines.top": False, "axes.spines.right": False}


def draw_stages(run: str | os.PathLike[str], path: str | os.PathLike[str]) -> None:
    """Draw the accuracy through the stages of one run into a file, as in the README."""
    pyplot = pyplot_for_files()
    report_run = ReportRun("r0", "", read_run(run))
    chart = stages(report_run.run.lines)
    if chart is None:
        raise UserError(f"{run} has no measurements within its stages yet; there is nothing to draw")
    figure = draw(chart, size=(9.0, 3.6), scale=1.35)
    metadata = report_run.metadata
    title = f"{metadata['method']} on {metadata['stream']}, {metadata['buffer']} images in memory"
    with pyplot.rc_context(STYLE):
        figure.axes[0].set_title(title, loc="left", fontsize=10, pad=22)
        with atomic_write(path) as file:
            figure.savefig(file, format=Path(path).suffix[1:] or "png", dpi=150)
    pyplot.close(figure)


def draw(chart: Chart, size: tuple[float, float] | None = None, scale: float = 1.0) -> Figure:
    """Draw a chart as a matplotlib figure."""
    pyplot = pyplot_for_files()
    style = {
        name: value * scale if "size" in name and isinstance(value, (int, float)) else value
        for name, value in STYLE.items()
    }
    with pyplot.rc_context(style):
        figure: Figure
        figure, axes = pyplot.subplots(figsize=size or _size(chart), layout="constrained")
        if chart.heatmap is not None:
            _heat(figure, axes, chart)
        else:
            _series(axes, chart, labels=size is not None)
            _axis(axes, chart.x, "x", chart.horizontal)
            _axis(axes, chart.y, "y", chart.horizontal)
        axes.set_xlabel(chart.x.title)
        axes.set_ylabel(chart.y.title)
        figure.draw_without_rendering()  # fixes text sizes while the style applies
    return figure


def _size(chart: Chart) -> tuple[float, float]:
    if chart.heatmap is not None:
        side = COLUMN_WIDTH if len(chart.heatmap.columns) <= 25 else PAGE_WIDTH
        return side, max(1.4, min(side, side * 0.9 * len(chart.heatmap.rows) / max(5, len(chart.heatmap.columns))))
    if chart.bands or (chart.line_labels and len(chart.series) > 6):
        return PAGE_WIDTH, 2.3 if chart.bands else 3.2
    if chart.horizontal:
        lines = max((fill(name, MAX_LABEL_WIDTH).count("\n") for name in chart.y.categories), default=0)
        return COLUMN_WIDTH, 0.9 + (0.2 + 0.1 * lines) * len(chart.y.categories)
    crowded = len(chart.x.categories) > 2 and any(len(name) > MAX_LABEL_WIDTH for name in chart.x.categories)
    return (PAGE_WIDTH, 2.8) if crowded else (COLUMN_WIDTH, 2.4)


def _series(axes: Axes, chart: Chart, labels: bool) -> None:
    from matplotlib.patches import Patch

    for band in chart.bands:
        axes.axvspan(band.low, band.high, color=BAND_COLORS[band.role], lw=0)
    if len(chart.bands) <= MAX_LABELED_BANDS:  # stages are distinct without color
        for band in chart.bands:
            middle, above = (band.low + band.high) / 2, axes.get_xaxis_transform()
            axes.text(middle, 1.005, band.role[0].upper(), transform=above, ha="center", va="bottom")
    for rule in chart.rules:
        axes.axvline(rule, color="#777777", lw=0.6, ls=":")
    for level, name in chart.levels:
        axes.axhline(level, color=COLORS["c"], lw=1.2, ls="--", label=f"{name}: {level:.2f} %")
    base = [0.0] * len(chart.series[0].y) if chart.stacked else None
    count, number = sum(series.kind == "line" for series in chart.series), -1
    for series in chart.series:
        number += series.kind == "line"
        if series.kind == "bars":
            _bars(axes, chart, series, base)
        else:
            _line(
                axes, chart, series, labels, 10 ** ((max(0, number) - (count - 1) / 2) * min(0.03, 0.2 / max(1, count)))
            )
    handles: list[Any] = [
        Patch(color=BAND_COLORS[r], label=f"{r[0].upper()} {name}") for r, name in chart.names.items()
    ]
    several = 1 < len(chart.series) <= MAX_NAMED_SERIES
    if several or chart.levels:
        shown = zip(*axes.get_legend_handles_labels(), strict=True)
        handles += [handle for handle, name in shown if not _is_stage_series(name, chart)]
    if chart.line_labels and several:
        _name_lines(axes, chart)
    elif handles:
        _add_legend(axes, handles)


def _add_legend(axes: Axes, handles: list[Any]) -> None:
    """A legend above the figure, with as many columns as fit its width."""
    figure = axes.get_figure()
    assert figure is not None
    for columns in range(min(9, len(handles)), 0, -1):
        legend = figure.legend(handles=handles, loc="outside upper left", ncols=columns, frameon=False)
        if columns == 1 or legend.get_window_extent().width <= figure.bbox.width - 8:
            return
        legend.remove()


def _name_lines(axes: Axes, chart: Chart) -> None:
    """The name of each line at its end, moved so that names do not overlap; published results are explained above."""
    lines = [(series, [v for v in series.y if v is not None][-1]) for series in chart.series if series.kind == "line"]
    lines.sort(key=lambda line: line[1])
    low, high = chart.y.low or 0.0, chart.y.high or 100.0
    gap = (high - low) * min(LABEL_GAP, 1 / max(1, len(lines)))
    places: list[float] = []
    for _, y in lines:
        places.append(max([y, *(place + gap for place in places[-1:])]))
    for k in reversed(range(len(places))):
        places[k] = min([places[k], high if k == len(places) - 1 else places[k + 1] - gap])
    for (series, _), y in zip(lines, places, strict=True):
        place, color = (1.02, y), COLORS[series.role]
        axes.annotate(
            fill(series.name, MAX_LABEL_WIDTH), place, xycoords=axes.get_yaxis_transform(), va="center", color=color
        )
    if any(series.kind == "points" for series in chart.series):
        axes.set_title("open marks: published", loc="left", fontsize="small")


def _is_stage_series(name: str, chart: Chart) -> bool:
    """Whether a series belongs to a stage, which its background already names."""
    return name.removesuffix(": end") in chart.names.values()


def _line(axes: Axes, chart: Chart, series: Series, labels: bool, shift: float = 1.0) -> None:
    x, color = chart.at(series), COLORS[series.role]
    if chart.x.log:
        x = [float(value) * shift for value in x]
    y = [float("nan") if value is None else value for value in series.y]
    points = series.kind == "points"
    open_marks = points and chart.unit != "mark" and series.interval == "std"
    style: dict[str, Any] = {"color": color, "label": series.name}
    style["lw"] = 0 if points else series.width * 0.75
    style["ls"] = "none" if points else DASHES.get(series.role, "-")
    if points or (series.marks and series.error):
        style |= {"marker": SYMBOLS.get(series.role, "o"), "ms": 4.0, "mfc": "white" if open_marks else color}
    errors = [error or 0.0 for error in series.error]
    if series.band and any(errors):
        low, high = ([v + sign * e for v, e in zip(y, errors, strict=True)] for sign in (-1, 1))
        axes.fill_between([float(value) for value in x], low, high, color=color, alpha=0.15, lw=0)
    if chart.horizontal:
        axes.errorbar(y, [str(name) for name in x], xerr=errors, capsize=2, elinewidth=0.8, **style)
    elif any(errors) and not series.band:
        axes.errorbar(x, y, yerr=errors, capsize=2, elinewidth=0.8, **style)
    else:
        axes.plot(x, y, **style)
    if labels and series.name.endswith(": end"):  # a single figure has no hover texts
        for k in range(0, len(series.y), 3):
            value = series.y[k]
            if value is not None:
                middle = (float(x[k]) + float(x[k + 1])) / 2
                box = {"facecolor": BAND_COLORS[series.role], "edgecolor": "none", "pad": 0.6, "alpha": 0.85}
                axes.text(middle, value + 2, f"{value:.0f}", ha="center", color=color, fontsize=8, bbox=box)


def _bars(axes: Axes, chart: Chart, series: Series, base: list[float] | None) -> None:
    y = [value or 0.0 for value in series.y]
    style: dict[str, Any] = {"color": COLORS[series.role], "label": series.name, "edgecolor": "white", "lw": 0.5}
    style["hatch"] = HATCHES.get(series.role, "") if chart.stacked else ""
    names = [str(name) for name in chart.at(series)]
    errors = [error or 0.0 for error in series.error] if any(series.error) and not chart.stacked else None
    if chart.horizontal:
        axes.barh(names, y, left=base, xerr=errors, **style)
    else:
        drawn = axes.bar(names, y, bottom=base, yerr=errors, capsize=2, error_kw={"elinewidth": 0.8}, **style)
        axes.bar_label(drawn, [f"{value:.1f}" for value in y], label_type="center", color="white", fontsize=6)
    if base is not None:
        base[:] = [low + high for low, high in zip(base, y, strict=True)]


def _axis(axes: Axes, axis: Axis, which: str, horizontal: bool) -> None:
    if axis.log:
        getattr(axes, f"set_{which}scale")("log")
    if axis.ticks:
        getattr(axes, f"set_{which}ticks")([at for at, _ in axis.ticks], [name for _, name in axis.ticks], minor=False)
        getattr(axes, f"{which}axis").minorticks_off()
    if any(len(name) > MAX_LABEL_WIDTH for name in axis.categories or ()):
        folded = [fill(name, MAX_LABEL_WIDTH) for name in axis.categories]
        getattr(axes, f"set_{which}ticks")(range(len(folded)), folded)
    if axis.categories and which == "x" and sum(map(len, axis.categories)) > 40:
        axes.tick_params(axis="x", labelrotation=30)
        for label in axes.get_xticklabels():
            label.set_horizontalalignment("right")
    if axis.low is not None or axis.high is not None:
        getattr(axes, f"set_{which}lim")(axis.low, axis.high)


def _heat(figure: Figure, axes: Axes, chart: Chart) -> None:
    import numpy as np

    heatmap = chart.heatmap
    assert heatmap is not None
    values = np.array([[np.nan if v is None else v for v in row] for row in heatmap.values], float)
    image = axes.imshow(values, cmap="Blues", vmin=0, vmax=heatmap.high, aspect="auto")
    for names, which in ((heatmap.columns, "x"), (heatmap.rows, "y")):
        step = -(-len(names) // 25)
        ticks = range(0, len(names), step)
        rotated = which == "x" and sum(map(len, names)) > 40
        getattr(axes, f"set_{which}ticks")(list(ticks), [names[k] for k in ticks], rotation=60 if rotated else 0)
    if values.size <= 225:
        for (row, column), value in np.ndenumerate(values):
            if not np.isnan(value) and not (heatmap.kind == "count" and value == 0):
                words = f"{value:.0f}" if heatmap.kind == "count" or len(heatmap.columns) > 10 else f"{value:.1f}"
                ink = "white" if value > 0.55 * heatmap.high else "black"
                axes.text(column, row, words, ha="center", va="center", fontsize=5.5, color=ink)
    figure.colorbar(image, ax=axes, shrink=0.8, label="images" if heatmap.kind == "count" else "%")


def pyplot_for_files() -> Any:
    """matplotlib.pyplot with a backend that draws into files."""
    try:
        import matplotlib
    except ImportError:
        raise UserError("drawing needs matplotlib; install it with pip install 'itl[report]'") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot
