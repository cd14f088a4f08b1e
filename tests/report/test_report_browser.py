"""The page in a real browser: quiet, offline, every mark drawn, true on hover, by keyboard, readable, on a phone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from itl.report import write_report
from itl.results import RunFolder, find_runs
from support.browser import Sheet, browser, needs_browser
from support.run_records import STAGES, fake_run

METHODS = ("itl", "b", "b+hp+lf")
MOVES = (  # key, the tab it leads to, its panel
    ("ArrowRight", "Stages", 1),
    ("End", "Time", 6),
    ("ArrowRight", "Overview", 0),
    ("ArrowLeft", "Time", 6),
    ("Home", "Overview", 0),
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three rungs over two seeds, one more buffer, one run cut short."""
    place = tmp_path_factory.mktemp("runs")
    for method in METHODS:
        for seed in (0, 1):
            fake_run(place / f"{method}-{seed}", method=method, seed=seed, pictures=8, each=8)
    fake_run(place / "larger", buffer=500, pictures=32)
    fake_run(place / "short", seed=5, stop=3)
    write_report(find_runs([place])[0], place / "report.html")
    return place


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    needs_browser()
    with browser() as made:
        yield made


@pytest.fixture(scope="module")
def sheet(chromium: Any, runs: Path) -> Iterator[Sheet]:
    made = Sheet(chromium, runs / "report.html")
    yield made
    made.close()


def of(runs: Path, name: str = "itl-0") -> dict[str, Any]:
    return dict(RunFolder(runs / name).read("result.json"))


def lines(runs: Path, *kinds: str, name: str = "itl-0", **metadata: Any) -> list[dict[str, Any]]:
    every = [line for line in RunFolder(runs / name).read_lines() if line["kind"] in kinds]
    return [line for line in every if all(line[key] == value for key, value in metadata.items())]


def choose(sheet: Sheet, **values: str) -> None:
    for name, label in values.items():
        sheet.page.locator(f"[role=tabpanel]:not([hidden]) select[data-name={name}]").first.select_option(label=label)
    sheet.wait_until_idle()


def test_every_tab_opens_without_a_complaint_or_a_request(sheet: Sheet) -> None:
    assert sheet.tabs() == ["Overview", "Stages", "Tasks", "Compare", "Memory", "Mistakes", "Time"]
    for tab in sheet.tabs():
        sheet.open(tab)
    assert sheet.said == []
    assert sheet.fetched == []


def test_the_stages_have_a_mark_for_every_line_of_the_record(sheet: Sheet, runs: Path) -> None:
    sheet.open("Stages")
    choose(sheet, run="itl, |B| 200, seed 0", measure="Class-IL")
    within = [len(lines(runs, "start", "curve", stage=stage)) for stage in STAGES]
    assert sheet.marks("stages/")[:3] == within == [20, 25, 25]
    script = (
        "(p) => [...p.querySelectorAll('.scatterlayer > .trace')].map((t) => t.querySelectorAll('.js-line').length)"
    )
    thick = sheet.plot("stages/").evaluate(script)[3:]
    assert thick == [5, 5, 5]
    bands = sheet.plot("stages/").evaluate("(p) => p.querySelectorAll('.shapelayer path').length")
    assert bands == 15 + 5  # a background a stage, a line a task
    assert sheet.marks("breakdown/")[:5] == [70, 56, 42, 28, 14]
    choose(sheet, run="itl, |B| 200, seed 5")  # the one cut short
    cut = [len(lines(runs, "start", "curve", name="short", stage=stage)) for stage in STAGES]
    assert sheet.marks("stages/")[:3] == cut


def test_matrices_show_a_number_for_every_cell(sheet: Sheet, runs: Path) -> None:
    sheet.open("Tasks")
    assert sheet.marks("matrix/") == [15]
    grids = sheet.page.locator("[role=tabpanel]:not([hidden]) .grid .plot").all()
    assert [len(plot.locator(".textpoint").all()) for plot in grids] == [15, 15, 15, 15, 3]
    choose(sheet, run="itl, |B| 200, seed 0")
    predicted = RunFolder(runs / "itl-0").read_arrays("predictions.npz")
    assert predicted is not None
    pairs = set(zip(predicted["label"].tolist(), predicted["class_il"].tolist(), strict=True))
    assert sheet.marks("confusion/") == [len(pairs)]


def test_comparisons_memory_mistakes_and_time_have_all_their_marks(sheet: Sheet, runs: Path) -> None:
    sheet.open("Compare")
    assert sheet.marks("bars0/") == [3, 3, 1]  # ours, the ablation's, Table 1's
    assert sheet.marks("buffers0/") == [2, 3]
    sheet.open("Memory")
    choose(sheet, run="itl, |B| 200, seed 0")
    result = of(runs)
    assert sheet.marks("held/") == [int(np.count_nonzero(result["memory_history"]))]
    assert sheet.marks("arrivals/") == [200]
    assert (
        sheet.page.locator("[role=tabpanel]:not([hidden]) .tile").count() == 91
    )  # seven runs share the room for pictures
    sheet.open("Mistakes")
    assert sheet.marks("pairs/") == [12]
    assert sheet.page.locator("[role=tabpanel]:not([hidden]) .tile").count() == 22
    sheet.open("Time")
    assert sheet.marks("seconds") == [4] * 5


def test_hovering_says_what_the_record_says(sheet: Sheet, runs: Path) -> None:
    sheet.open("Stages")
    choose(sheet, run="itl, |B| 200, seed 0", measure="Class-IL")
    tangent = lines(runs, "start", "curve", stage="tangent")
    for place in (0, 2, 4):
        said = sheet.hover("stages/", 1, place)
        assert f"{tangent[place]['class_il']:.2f} %" in said
        assert f"task 1, tangent, epoch {tangent[place]['epoch']}" in said
    choose(sheet, measure="Task-IL")
    assert f"{tangent[2]['task_il']:.2f} %" in sheet.hover("stages/", 1, 2)
    choose(sheet, measure="Class-IL")
    sheet.open("Tasks")
    choose(sheet, group="itl, |B| 500")
    matrix = of(runs, "larger")["class_il_matrix"]
    for row, column in ((0, 0), (4, 1), (3, 3)):
        said = sheet.hover("matrix/", 0, (row, column))  # type: ignore[arg-type]
        assert f"{matrix[row][column]:.2f} %" in said
        assert f"after task {row + 1}, task {column + 1}" in said
    sheet.open("Compare")
    both = [of(runs, f"b-{seed}")["class_il"] for seed in (0, 1)]
    assert f"{np.mean(both):.2f} % ± {np.std(both, ddof=1):.2f}" in sheet.hover("bars0/", 0, 0)
    assert "60.21 %" in sheet.hover("bars0/", 1, 1)
    sheet.open("Time")
    assert "projection: 5.00 s" in sheet.hover("seconds", 3, 0)


def test_tabs_and_selectors_work_by_keyboard(sheet: Sheet) -> None:
    page = sheet.page
    sheet.open("Overview")
    page.locator("#tab-0").focus()
    for key, tab, panel in MOVES:
        page.keyboard.press(key)
        sheet.wait_until_idle()
        assert page.evaluate("document.activeElement.textContent") == tab
        assert page.locator("[role=tabpanel]:visible").evaluate_all("(all) => all.map((p) => p.id)") == [
            f"panel-{panel}"
        ]
        assert page.locator("[role=tab][aria-selected=true]").all_inner_texts() == [tab]
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Tab")  # into the panel, then to its first selector
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.dataset.name") == "run"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.dataset.name") == "measure"
    before = sheet.plot("stages/").evaluate("(p) => p.data[0].y[0]")
    page.keyboard.press("ArrowDown")
    sheet.wait_until_idle()
    assert page.evaluate("document.activeElement.value") == "task_il"
    assert sheet.plot("stages/").evaluate("(p) => p.data[0].y[0]") != before
    measures = page.locator("select[data-name=measure]").evaluate_all("(all) => all.map((s) => s.value)")
    assert set(measures) == {"task_il"}  # every view follows
    page.keyboard.press("ArrowUp")
    page.locator("select[data-name=task]").focus()
    page.keyboard.press("ArrowDown")
    sheet.wait_until_idle()
    faint = sheet.plot("breakdown/").evaluate("(p) => p.data.map((t) => t.opacity)")
    assert faint == [1, 0.15, 0.15, 0.15, 0.15, 0.15]
    page.keyboard.press("ArrowUp")
    page.locator("details summary").first.focus()
    page.keyboard.press("Tab")
    sheet.wait_until_idle()


def test_the_numbers_below_a_chart_are_its_own(sheet: Sheet, runs: Path) -> None:
    sheet.open("Tasks")
    choose(sheet, group="itl, |B| 500", measure="Class-IL")
    figure = sheet.page.locator("figure[data-key^='matrix/']")
    figure.locator("summary").click()
    row = figure.locator("tbody tr").nth(4)
    row.wait_for()  # it is filled in when it is opened
    cells = row.locator("td").all_inner_texts()
    assert cells == ["5", *(f"{float(f'{v:.2f}'):g}" for v in of(runs, "larger")["class_il_matrix"][4])]
    figure.locator("summary").click()


@pytest.mark.slow
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_all_text_can_be_read(chromium: Any, runs: Path, theme: str) -> None:
    made = Sheet(chromium, runs / "report.html", theme=theme)
    assert made.page.evaluate("document.documentElement.dataset.theme") == theme
    for tab in made.tabs():
        made.open(tab)
        assert made.pale() == [], tab
    made.close()


def test_pale_text_is_found(chromium: Any, tmp_path: Path) -> None:
    """The measure itself is able to fail."""
    words = "".join(f"<p>plain {k}</p>" for k in range(6))
    style = "<style>body { background: #fff } .pale { color: #8a8a8a }</style>"
    page = f"<html data-ready>{style}<header>{words}<p class=pale>grey</p></header></html>"
    (tmp_path / "page.html").write_text(page)
    made = Sheet(chromium, tmp_path / "page.html")
    assert made.pale() == ["'grey' 3.45"]
    made.close()


@pytest.mark.slow
def test_the_button_changes_the_theme_and_redraws_the_charts(chromium: Any, runs: Path) -> None:
    made = Sheet(chromium, runs / "report.html")
    made.open("Compare")
    before = made.plot("bars0/").evaluate("(p) => p.data[0].marker.color")
    made.page.locator("#theme").click()
    made.wait_until_idle()
    assert made.page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert made.plot("bars0/").evaluate("(p) => p.data[0].marker.color") != before
    made.close()


def test_nothing_overflows_on_a_phone(chromium: Any, runs: Path) -> None:
    made = Sheet(chromium, runs / "report.html", width=390)
    for tab in made.tabs():
        made.open(tab)
        assert made.overflow() == [], tab
    assert made.said == []
    made.close()
