"""The page in a browser: no messages or requests, all marks and hover texts, keyboard, contrast, narrow screens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from itl.report import write_report
from itl.results import RunFolder, find_runs
from support.browser import ReportPage, browser, needs_browser
from support.run_records import STAGES, fake_run

METHODS = ("itl", "b", "b+hp+lf")
KEY_PRESSES = (  # key, selected tab, index of its panel
    ("ArrowRight", "Stages", 1),
    ("End", "Time", 6),
    ("ArrowRight", "Overview", 0),
    ("ArrowLeft", "Time", 6),
    ("Home", "Overview", 0),
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three methods with two seeds, one more buffer size, and one interrupted run."""
    folder = tmp_path_factory.mktemp("runs")
    for method in METHODS:
        for seed in (0, 1):
            fake_run(folder / f"{method}-{seed}", method=method, seed=seed, pictures=8, each=8)
    fake_run(folder / "larger", buffer=500, pictures=32)
    fake_run(folder / "short", seed=5, stop=3)
    write_report(find_runs([folder])[0], folder / "report.html")
    return folder


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    needs_browser()
    with browser() as instance:
        yield instance


@pytest.fixture(scope="module")
def report_page(chromium: Any, runs: Path) -> Iterator[ReportPage]:
    report_page = ReportPage(chromium, runs / "report.html")
    yield report_page
    report_page.close()


def result_of(runs: Path, name: str = "itl-0") -> dict[str, Any]:
    return dict(RunFolder(runs / name).read("result.json"))


def lines(runs: Path, *kinds: str, name: str = "itl-0", **metadata: Any) -> list[dict[str, Any]]:
    of_kind = [line for line in RunFolder(runs / name).read_lines() if line["kind"] in kinds]
    return [line for line in of_kind if all(line[key] == value for key, value in metadata.items())]


def choose(report_page: ReportPage, **values: str) -> None:
    for name, label in values.items():
        report_page.page.locator(f"[role=tabpanel]:not([hidden]) select[data-name={name}]").first.select_option(
            label=label
        )
    report_page.wait_until_drawn()


def test_every_tab_opens_without_console_messages_or_requests(report_page: ReportPage) -> None:
    assert report_page.tabs() == ["Overview", "Stages", "Tasks", "Compare", "Memory", "Mistakes", "Time"]
    for tab in report_page.tabs():
        report_page.open(tab)
    assert report_page.messages == []
    assert report_page.external_requests == []


def test_stages_chart_has_a_mark_for_every_recorded_measurement(report_page: ReportPage, runs: Path) -> None:
    report_page.open("Stages")
    choose(report_page, run="itl, |B| 200, seed 0", measure="Class-IL")
    counts = [len(lines(runs, "start", "curve", stage=stage)) for stage in STAGES]
    assert report_page.marks("stages/")[:3] == counts == [20, 25, 25]
    script = (
        "(p) => [...p.querySelectorAll('.scatterlayer > .trace')].map((t) => t.querySelectorAll('.js-line').length)"
    )
    ends = report_page.plot("stages/").evaluate(script)[3:]
    assert ends == [5, 5, 5]
    bands = report_page.plot("stages/").evaluate("(p) => p.querySelectorAll('.shapelayer path').length")
    assert bands == 15 + 5  # a background per stage, a line per task
    assert report_page.marks("breakdown/")[:5] == [70, 56, 42, 28, 14]
    choose(report_page, run="itl, |B| 200, seed 5")  # the interrupted run
    interrupted = [len(lines(runs, "start", "curve", name="short", stage=stage)) for stage in STAGES]
    assert report_page.marks("stages/")[:3] == interrupted


def test_matrices_show_a_number_in_every_cell(report_page: ReportPage, runs: Path) -> None:
    report_page.open("Tasks")
    assert report_page.marks("matrix/") == [15]
    grids = report_page.page.locator("[role=tabpanel]:not([hidden]) .grid .plot").all()
    assert [len(plot.locator(".textpoint").all()) for plot in grids] == [15, 15, 15, 15, 3]
    choose(report_page, run="itl, |B| 200, seed 0")
    predicted = RunFolder(runs / "itl-0").read_arrays("predictions.npz")
    assert predicted is not None
    pairs = set(zip(predicted["label"].tolist(), predicted["class_il"].tolist(), strict=True))
    assert report_page.marks("confusion/") == [len(pairs)]


def test_other_tabs_have_all_marks(report_page: ReportPage, runs: Path) -> None:
    report_page.open("Compare")
    assert report_page.marks("ablation/") == [3, 3, 1]  # ours, the ablation's, Table 1's
    assert report_page.marks("buffers/") == [2, 3]
    report_page.open("Memory")
    choose(report_page, run="itl, |B| 200, seed 0")
    result = result_of(runs)
    assert report_page.marks("held/") == [int(np.count_nonzero(result["memory_history"]))]
    assert report_page.marks("arrivals/") == [200]
    assert (
        report_page.page.locator("[role=tabpanel]:not([hidden]) .tile").count() == 91
    )  # limited, because seven runs have images
    report_page.open("Mistakes")
    assert report_page.marks("pairs/") == [12]
    assert report_page.page.locator("[role=tabpanel]:not([hidden]) .tile").count() == 22
    report_page.open("Time")
    assert report_page.marks("seconds") == [4] * 5


def test_hover_texts_show_recorded_values(report_page: ReportPage, runs: Path) -> None:
    report_page.open("Stages")
    choose(report_page, run="itl, |B| 200, seed 0", measure="Class-IL")
    tangent = lines(runs, "start", "curve", stage="tangent")
    for index in (0, 2, 4):
        text = report_page.hover("stages/", 1, index)
        assert f"{tangent[index]['class_il']:.2f} %" in text
        assert f"task 1, tangent, epoch {tangent[index]['epoch']}" in text
    choose(report_page, measure="Task-IL")
    assert f"{tangent[2]['task_il']:.2f} %" in report_page.hover("stages/", 1, 2)
    choose(report_page, measure="Class-IL")
    report_page.open("Tasks")
    choose(report_page, group="itl, |B| 500")
    matrix = result_of(runs, "larger")["class_il_matrix"]
    for row, column in ((0, 0), (4, 1), (3, 3)):
        text = report_page.hover("matrix/", 0, (row, column))
        assert f"{matrix[row][column]:.2f} %" in text
        assert f"after task {row + 1}, task {column + 1}" in text
    report_page.open("Compare")
    results = [result_of(runs, f"b-{seed}")["class_il"] for seed in (0, 1)]
    assert f"{np.mean(results):.2f} % ± {np.std(results, ddof=1):.2f}" in report_page.hover("ablation/", 0, 0)
    assert "60.21 %" in report_page.hover("ablation/", 1, 1)
    report_page.open("Time")
    assert "projection: 5.00 s" in report_page.hover("seconds", 3, 0)


def test_tabs_and_selectors_work_by_keyboard(report_page: ReportPage) -> None:
    page = report_page.page
    report_page.open("Overview")
    page.locator("#tab-0").focus()
    for key, tab, panel in KEY_PRESSES:
        page.keyboard.press(key)
        report_page.wait_until_drawn()
        assert page.evaluate("document.activeElement.textContent") == tab
        assert page.locator("[role=tabpanel]:visible").evaluate_all("(all) => all.map((p) => p.id)") == [
            f"panel-{panel}"
        ]
        assert page.locator("[role=tab][aria-selected=true]").all_inner_texts() == [tab]
    page.keyboard.press("ArrowRight")
    for _ in ("methods", "sizes", "seeds"):
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.tagName") == "SUMMARY"
    page.keyboard.press("Tab")  # into the panel, then to its first selector
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.dataset.name") == "run"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.dataset.name") == "measure"
    before = report_page.plot("stages/").evaluate("(p) => p.data[0].y[0]")
    page.keyboard.press("ArrowDown")
    report_page.wait_until_drawn()
    assert page.evaluate("document.activeElement.value") == "task_il"
    assert report_page.plot("stages/").evaluate("(p) => p.data[0].y[0]") != before
    measures = page.locator("select[data-name=measure]").evaluate_all("(all) => all.map((s) => s.value)")
    assert set(measures) == {"task_il"}  # selectors of all figures change together
    page.keyboard.press("ArrowUp")
    page.locator("select[data-name=task]").focus()
    page.keyboard.press("ArrowDown")
    report_page.wait_until_drawn()
    opacities = report_page.plot("breakdown/").evaluate("(p) => p.data.map((t) => t.opacity)")
    assert opacities == [1, 0.15, 0.15, 0.15, 0.15, 0.15]
    page.keyboard.press("ArrowUp")
    page.locator("details summary").first.focus()
    page.keyboard.press("Tab")
    report_page.wait_until_drawn()


def test_table_below_a_chart_shows_its_numbers(report_page: ReportPage, runs: Path) -> None:
    report_page.open("Tasks")
    choose(report_page, group="itl, |B| 500", measure="Class-IL")
    figure = report_page.page.locator("figure[data-key^='matrix/']")
    figure.locator("summary").click()
    row = figure.locator("tbody tr").nth(4)
    row.wait_for()  # filled when the table is opened
    cells = row.locator("td").all_inner_texts()
    assert cells == ["5", *(f"{float(f'{v:.2f}'):g}" for v in result_of(runs, "larger")["class_il_matrix"][4])]
    figure.locator("summary").click()


@pytest.mark.slow
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_all_text_has_sufficient_contrast(chromium: Any, runs: Path, theme: str) -> None:
    report_page = ReportPage(chromium, runs / "report.html", theme=theme)
    assert report_page.page.evaluate("document.documentElement.dataset.theme") == theme
    for tab in report_page.tabs():
        report_page.open(tab)
        assert report_page.low_contrast() == [], tab
    report_page.close()


def test_contrast_check_finds_pale_text(chromium: Any, tmp_path: Path) -> None:
    """Gray text on white has too little contrast."""
    paragraphs = "".join(f"<p>plain {k}</p>" for k in range(6))
    style = "<style>body { background: #fff } .pale { color: #8a8a8a }</style>"
    html = f"<html data-ready>{style}<header>{paragraphs}<p class=pale>grey</p></header></html>"
    (tmp_path / "page.html").write_text(html)
    report_page = ReportPage(chromium, tmp_path / "page.html")
    assert report_page.low_contrast() == ["'grey' 3.45"]
    report_page.close()


@pytest.mark.slow
def test_theme_button_redraws_the_charts(chromium: Any, runs: Path) -> None:
    report_page = ReportPage(chromium, runs / "report.html")
    report_page.open("Compare")
    before = report_page.plot("ablation/").evaluate("(p) => p.data[0].marker.color")
    report_page.page.locator("#theme").click()
    report_page.wait_until_drawn()
    assert report_page.page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert report_page.plot("ablation/").evaluate("(p) => p.data[0].marker.color") != before
    report_page.close()


def test_nothing_overflows_on_a_phone(chromium: Any, runs: Path) -> None:
    report_page = ReportPage(chromium, runs / "report.html", width=390)
    for tab in report_page.tabs():
        report_page.open(tab)
        assert report_page.overflow() == [], tab
    assert report_page.messages == []
    report_page.close()
