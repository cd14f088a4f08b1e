"""The page's selection of methods, sizes and seeds, its tables, addresses, saved files and print-out, in a browser."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from PIL import Image

from itl.report import write_report
from itl.results import find_runs
from support.browser import TIMEOUT_MS, ReportPage, browser, needs_browser
from support.run_records import fake_run

pytestmark = pytest.mark.slow
LEVELS = {"itl": 66.0, "er": 45.0, "derpp": 64.0}


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three methods with three seeds, two of them with a second memory size, and one more with a single seed."""
    folder = tmp_path_factory.mktemp("runs")
    for method, level in LEVELS.items():
        for seed in range(3):
            fake_run(folder / f"{method}-{seed}", method=method, seed=seed, level=level + seed**2)
    for method in ("itl", "er"):
        fake_run(folder / f"{method}-500", method=method, buffer=500, level=70.0)
    fake_run(folder / "gss", method="gss", level=50.0)
    write_report(find_runs([folder])[0], folder / "report.html")
    return folder / "report.html"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    needs_browser()
    with browser() as instance:
        yield instance


@pytest.fixture
def report_page(chromium: Any, page_file: Path) -> Iterator[ReportPage]:
    report_page = ReportPage(chromium, page_file)
    yield report_page
    assert report_page.messages == []
    report_page.close()


def toggle(report_page: ReportPage, name: str, *values: str) -> None:
    """Change the check boxes of a filter."""
    box = report_page.page.locator(f"#filters details[data-name={name}]")
    if box.get_attribute("open") is None:
        box.locator("summary").click()
    for value in values:
        box.locator(f"input[value='{value}']").click()
    report_page.wait_until_drawn()


def names(report_page: ReportPage, key: str) -> list[str]:
    """The names of the series of a chart, without bands."""
    found = report_page.plot(key).evaluate("(p) => p.data.filter((t) => t.showlegend !== false).map((t) => t.name)")
    return list(found)


def shown_rows(report_page: ReportPage) -> list[str]:
    return [str(name) for name in report_page.page.locator(".cells tbody tr:visible th").all_inner_texts()]


def test_averages_have_a_line_and_a_band_per_method(report_page: ReportPage) -> None:
    report_page.open("Compare")
    assert sorted(names(report_page, "averages/")) == [f"{m}, |B| 200" for m in ("derpp", "er", "gss", "itl")]
    bands = report_page.plot("averages/").evaluate("(p) => p.data.filter((t) => t.fill === 'toself').length")
    assert bands == 4
    labels = report_page.plot("averages/").locator(".annotation-text").all_text_contents()
    assert sorted(labels) == sorted(names(report_page, "averages/"))  # each line is named at its end


def test_selection_of_methods_and_sizes_applies_to_all_tabs(report_page: ReportPage) -> None:
    toggle(report_page, "method", "gss", "derpp")
    assert shown_rows(report_page) == ["itl, |B| 200", "itl, |B| 500", "er, |B| 200", "er, |B| 500"]
    report_page.open("Compare")
    assert sorted(names(report_page, "averages/")) == ["er, |B| 200", "itl, |B| 200"]
    assert report_page.plot("bars/").evaluate("(p) => p.data[0].x") == ["er, |B| 200", "itl, |B| 200"]
    report_page.open("Time")
    assert len(report_page.plot("seconds").evaluate("(p) => p.data[0].y")) == 4
    report_page.open("Tasks")
    assert report_page.page.locator(".grid .plot:visible").count() == 4
    toggle(report_page, "size", "500")
    assert report_page.page.locator(".grid .plot:visible").count() == 2
    report_page.open("Stages")
    offered = report_page.page.locator("[role=tabpanel]:visible select[data-name=run]").first.locator("option")
    assert not [name for name in offered.all_inner_texts() if "500" in name or "gss" in name]


def test_means_are_computed_over_the_selected_seeds(report_page: ReportPage) -> None:
    toggle(report_page, "seed", "0")
    values = [66.0 + seed**2 for seed in (1, 2)]
    expected = f"{statistics.fmean(values):.2f} ± {statistics.stdev(values):.2f}"
    cell = report_page.page.locator("tr[data-group]", has_text="itl, |B| 200").locator("td[data-measure=class_il]")
    assert cell.inner_text() == expected
    assert shown_rows(report_page) == [f"{m}, |B| 200" for m in ("itl", "er", "derpp")]  # others have seed 0 only
    report_page.open("Compare")
    bars = report_page.plot("bars/").evaluate("(p) => [p.data[0].x, p.data[0].y, p.data[0].error_y.array]")
    position = bars[0].index("itl, |B| 200")
    assert bars[1][position] == pytest.approx(statistics.fmean(values))
    assert bars[2][position] == pytest.approx(statistics.stdev(values))


def test_paired_differences_can_be_taken_to_any_method(report_page: ReportPage) -> None:
    from scipy import stats

    report_page.open("Compare")
    page = report_page.page
    selector = page.locator("figure[data-key^='paired/'] select[data-name=reference]")
    assert selector.locator("option").first.inner_text() == "itl, |B| 200"
    shown = report_page.plot("paired/").evaluate("(p) => [p.data[0].y, p.data[0].x, p.data[0].error_x.array]")
    assert dict(zip(shown[0], shown[1], strict=True)) == {
        "er, |B| 200": -21.0,
        "gss, |B| 200": -16.0,
        "derpp, |B| 200": -2.0,
    }
    selector.select_option(label="gss, |B| 200")
    report_page.wait_until_drawn()
    shown = report_page.plot("paired/").evaluate("(p) => [p.data[0].y, p.data[0].x]")
    assert dict(zip(*shown, strict=True))["itl, |B| 200"] == pytest.approx(16.0)
    assert stats.t.ppf(0.975, 2) == pytest.approx(page.evaluate("JSON.parse(payload.textContent).selection.t[3]"))


def test_overview_marks_single_seeds_and_best_values_and_sorts(report_page: ReportPage) -> None:
    page = report_page.page
    single = page.locator("tr[data-group]", has_text="gss").locator("td[data-measure=class_il]").inner_text()
    assert "(1 seed)" in single
    best = page.locator("td.best[data-measure=class_il]").evaluate_all(
        "(all) => all.map((c) => c.parentNode.cells[0].innerText)"
    )
    assert best == ["itl, |B| 200"]  # the values of 500 images are equal
    assert "σ" not in page.locator("tr[data-group]", has_text="gss").inner_text()
    for _ in range(2):
        page.locator(".cells thead button", has_text="Class-IL").first.click()
    levels = [float(text.split()[0]) for text in page.locator("td[data-measure=class_il]").all_inner_texts()]
    assert levels == sorted(levels)
    assert page.locator("th[aria-sort=ascending]").count() == 1


def test_address_restores_tab_and_selection(report_page: ReportPage, chromium: Any, page_file: Path) -> None:
    report_page.open("Compare")
    toggle(report_page, "method", "gss")
    report_page.page.locator("[role=tabpanel]:visible select[data-name=measure]").first.select_option("task_il")
    words = parse_qs(urlsplit(report_page.page.url).fragment)
    assert (words["tab"], words["measure"], words["method"]) == (["Compare"], ["task_il"], ["itl", "er", "derpp"])
    again = ReportPage(chromium, page_file)
    again.page.goto("about:blank")
    again.page.goto(report_page.page.url)
    again.page.wait_for_selector("html[data-ready]")
    again.wait_until_drawn()
    assert again.page.locator("[role=tab][aria-selected=true]").inner_text() == "Compare"
    assert "Task-IL" in str(again.plot("averages/").get_attribute("aria-label"))
    assert len(names(again, "averages/")) == 3
    again.close()


def test_every_chart_can_be_saved_as_svg_and_png(report_page: ReportPage, tmp_path: Path) -> None:
    for tab in ("Compare", "Tasks"):
        report_page.open(tab)
        drawn = report_page.page.locator("[role=tabpanel]:visible .plot .main-svg:first-child").count()
        assert report_page.page.locator("[role=tabpanel]:visible .save:visible").count() == drawn
    box = report_page.page.locator("[role=tabpanel]:visible .save").first
    for name in ("SVG", "PNG"):
        with report_page.page.expect_download() as download:
            box.get_by_role("button", name=name).click()
        download.value.save_as(tmp_path / name)
    assert (tmp_path / "SVG").read_text().startswith("<svg")
    with Image.open(tmp_path / "PNG") as image:
        assert image.width > 2000


def test_printing_shows_all_tabs_with_their_charts(report_page: ReportPage) -> None:
    from playwright.sync_api import expect

    page, panels = report_page.page, report_page.page.locator("[role=tabpanel]:visible")
    page.emulate_media(media="print")
    expect(panels).to_have_count(page.locator("[role=tab]").count(), timeout=TIMEOUT_MS)
    report_page.wait_until_drawn()
    assert page.locator(".plot:visible").evaluate_all(
        "(all) => all.every((p) => p.querySelector('.main-svg') || p.textContent)"
    )
    assert page.locator("#filters").is_hidden()
    assert len(page.pdf()) > 50_000
    page.emulate_media(media="screen")
    expect(panels).to_have_count(1, timeout=TIMEOUT_MS)
