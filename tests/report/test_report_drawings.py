"""Figure files for papers: the charts of the page, one column or one page wide, with embedded fonts."""

from __future__ import annotations

import re
import zlib
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from itl import UserError
from itl.report import compare, draw_stages, figure_files, write_figures
from itl.report.chart import Chart
from itl.report.figure_files import COMPARISON_KINDS, RUN_KINDS, figures
from itl.report.matplotlib_figures import COLUMN_WIDTH, PAGE_WIDTH, draw
from itl.report.run_selection import report_data
from itl.report.stages import stages
from itl.results import RunFolder, find_runs
from support.packages import require
from support.run_records import fake_run

require("matplotlib")


@pytest.mark.parametrize(
    "stage_names", [("specialist", "tangent", "projection"), ("specialist",), ("specialist", "linear")]
)
def test_draw_stages_works_for_every_kind_of_run(stage_names: tuple[str, ...], tmp_path: Path) -> None:
    fake_run(tmp_path / "run", stages=stage_names, tasks=2)
    draw_stages(tmp_path / "run", tmp_path / "stages.png")
    with Image.open(tmp_path / "stages.png") as image:
        assert image.size == (1350, 540)
        assert len(np.unique(np.asarray(image.convert("L")))) > 20


def test_draw_stages_shows_the_finished_part_of_an_interrupted_run(tmp_path: Path) -> None:
    fake_run(tmp_path / "run", stop=1)
    draw_stages(tmp_path / "run", tmp_path / "stages.png")
    assert (tmp_path / "stages.png").exists()
    RunFolder(tmp_path / "new").create({"method": "itl", "stream": "seq-digits", "buffer": 50, "seed": 0})
    with pytest.raises(UserError, match="nothing to draw"):
        draw_stages(tmp_path / "new", tmp_path / "new.png")


def test_draw_stages_refuses_a_folder_without_a_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no config\.json"):
        draw_stages(tmp_path, tmp_path / "stages.png")


def test_matplotlib_figure_has_the_numbers_of_the_chart(tmp_path: Path) -> None:
    fake_run(tmp_path / "run")
    chart = stages(report_data(find_runs([tmp_path])[0]).runs[0].run.lines)
    assert chart is not None
    axes = draw(chart).axes[0]
    lines = {line.get_label(): line for line in axes.get_lines()}
    for series in chart.series:
        drawn = np.asarray(lines[series.name].get_ydata(), float)
        assert np.array_equal(drawn, np.array(series.y, float), equal_nan=True)
        assert list(lines[series.name].get_xdata()) == list(series.x)


KINDS = ("confusion", "pairs", "held", "arrivals", "averages", "bars", "buffers", "policies", "seconds")
NAMES = ("$a_{b$", "US$", "A$", r"\$", "$x$ $", "^", "_", "%", "{", r"\alpha")


def shown_names(chart: Chart) -> set[str]:
    """The names that a figure of a chart must show."""
    names = {*chart.x.categories, *chart.y.categories, *(name for _, name in (*chart.x.ticks, *chart.y.ticks))}
    named = [series for series in chart.series if series.kind == "line" or not chart.line_labels]
    names |= {series.name for series in named} if len(chart.series) > 1 else set()
    names |= {f"{name}: {level:.2f} %" for level, name in chart.levels}
    return names if chart.heatmap is None else {*chart.heatmap.columns, *chart.heatmap.rows}


@pytest.mark.parametrize("tex", [False, True])  # the user's matplotlib setting
def test_names_are_drawn_literally_not_as_formulas(tex: bool, tmp_path: Path) -> None:
    import matplotlib
    from matplotlib.text import Text

    for buffer in (200, 500):
        fake_run(tmp_path / str(buffer), buffer=buffer, method="US$A$", class_names=list(NAMES), tasks=2)
    for policy, t in (("$p_{$", 1.0), ("$p_{$", 2.0), ("$q$", 3.0)):
        settings = {"memory.policy": policy, "memory.temperature": t}
        fake_run(tmp_path / f"{policy}{t}", variant=f"$_{{${t:g}", settings=settings, class_names=list(NAMES), tasks=2)
    charts = {
        re.sub(r"[\d/].*", "", key): chart for key, chart in figures(report_data(find_runs([tmp_path])[0]), KINDS)
    }
    for chart in (charts[kind] for kind in KINDS):
        with matplotlib.rc_context({"text.usetex": tex}):
            figure = draw(chart)
        texts = [text for text in figure.findobj(Text) if text.get_text()]
        assert shown_names(chart)
        assert shown_names(chart) <= {text.get_text() for text in texts}
        assert not any(text.get_parse_math() or text.get_usetex() for text in texts)
        matplotlib.pyplot.close(figure)


def test_method_name_in_the_title_is_not_a_formula(tmp_path: Path) -> None:
    fake_run(tmp_path / "run", method="$a_{b$", tasks=2)
    draw_stages(tmp_path / "run", tmp_path / "stages.png")
    assert (tmp_path / "stages.png").exists()


def test_figure_files_have_distinct_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, epochs in (("a", 1), ("b", 2), ("c/b", 3)):
        fake_run(tmp_path / f"runs/{folder}/seed0", settings={"specialist.epochs": epochs}, tasks=2)
    fake_run(
        tmp_path / "runs/b-seed0", method="er", variant="a b", tasks=2
    )  # the same name as runs/b/seed0 with its folder
    fake_run(tmp_path / "runs/er", method="er", variant="A_b", tasks=2)
    monkeypatch.setattr(figure_files, "draw", lambda chart: figure_files.pyplot_for_files().figure(figsize=(1, 1)))
    runs, _ = find_runs([tmp_path / "runs"])
    written = write_figures(runs, tmp_path / "figures", ["pairs", "matrix"])
    assert len(written) == 2 * len(list(figures(report_data(runs), ["pairs", "matrix"])))
    assert sorted(written) == sorted((tmp_path / "figures").iterdir())
    names = {path.stem for path in written}
    assert {name.removeprefix("pairs-") for name in names if name.startswith("pairs-")} == {
        "a-seed0",
        "runs-b-seed0",
        "c-b-seed0",
        "b-seed0",
        "er",
    }
    assert {"matrix-mean-er__a_b-class_il", "matrix-mean-er__A_b-2-class_il"} <= names


@pytest.mark.slow
def test_every_figure_is_a_png_and_a_pdf_with_embedded_fonts(tmp_path: Path) -> None:
    small: dict[str, Any] = {"tasks": 2, "classes": 4}
    for buffer in (200, 500):
        fake_run(tmp_path / f"runs/itl-{buffer}", buffer=buffer, **small)
    fake_run(tmp_path / "runs/b", method="b", **small)
    fake_run(tmp_path / "runs/short", seed=7, stop=2, **small)
    runs, _ = find_runs([tmp_path / "runs"])
    done: list[tuple[int, int]] = []
    written = write_figures(runs, tmp_path / "figures", progress=lambda *numbers: done.append(numbers))
    keys = [key for key, _ in figures(report_data(runs))]
    assert done == [(k + 1, len(keys)) for k in range(len(keys))]
    assert len(written) == 2 * len(keys) == len(list((tmp_path / "figures").iterdir()))
    assert {re.match("[a-z]+", key)[0] for key in keys} == {*COMPARISON_KINDS, *RUN_KINDS} - {"ablation", "policies"}
    for path in written:
        if path.suffix == ".png":
            with Image.open(path) as image:
                assert round(image.width / 300, 2) in (COLUMN_WIDTH, PAGE_WIDTH)
        else:
            content = path.read_bytes()
            streams = re.findall(rb"stream\r?\n(.*?)\r?\nendstream", content, re.DOTALL)
            assert b"/FontFile2" in content  # TrueType, embedded
            assert b"/Type3" not in content
            drawing = zlib.decompressobj().decompress(streams[0])  # its last byte may have been taken for a line end
            assert b" re" in drawing or b" l" in drawing


def test_long_names_are_wrapped_and_do_not_overlap(tmp_path: Path) -> None:
    for k in range(5):
        fake_run(tmp_path / f"{k}", variant=f"a-long-name-of-many-words-for-a-variant-{k}", tasks=2)
    report = report_data(find_runs([tmp_path])[0])
    chart = compare.seconds(report)
    assert chart is not None
    axes = draw(chart).axes[0]
    names = axes.get_yticklabels()
    assert ["".join(name.get_text().split()) for name in names] == ["".join(c.split()) for c in chart.y.categories]
    boxes = sorted((name.get_window_extent().y0, name.get_window_extent().y1) for name in names)
    assert all(below[1] < above[0] for below, above in pairwise(boxes))


def test_many_configurations_give_comparisons_only_unless_kinds_are_chosen(tmp_path: Path) -> None:
    for method in ("itl", "er", "b", "derpp", "der", "sgd"):
        fake_run(tmp_path / method, method=method, tasks=2)
    report = report_data(find_runs([tmp_path])[0])
    keys = [key for key, _ in figures(report)]
    assert {key.partition("/")[0] for key in keys} == {"averages", "paired", "bars", "buffers", "seconds"}
    assert [key.partition("/")[0] for key, _ in figures(report, ["matrix"])] == ["matrix"] * 12
    with pytest.raises(UserError, match="kind of figure"):
        write_figures(find_runs([tmp_path])[0], tmp_path / "figures", ["matrices"])


def test_no_text_or_legend_is_clipped(tmp_path: Path) -> None:
    import matplotlib
    from matplotlib.text import Text

    for k in range(10):
        for buffer in (200, 500):
            fake_run(tmp_path / f"{k}-{buffer}", method="itl" if k % 2 else "er", variant=f"variant-{k}", buffer=buffer)
    for key, chart in figures(report_data(find_runs([tmp_path])[0]), ["averages", "buffers", "seconds", "paired"]):
        figure = draw(chart)
        width, height = figure.bbox.width + 1, figure.bbox.height + 1
        ticks = [label for axes in figure.axes for label in (*axes.get_xticklabels(), *axes.get_yticklabels())]
        for text in figure.findobj(Text):
            box = text.get_window_extent()
            inside = box.x0 >= -1 and box.y0 >= -1 and box.x1 <= width and box.y1 <= height
            assert inside or not text.get_text() or text in ticks, (key, text.get_text())
        matplotlib.pyplot.close(figure)
