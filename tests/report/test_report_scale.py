"""Reports of unusual runs are right, quick, small, and can be read on a phone."""

from __future__ import annotations

import re
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from itl.results import RunFolder
from support.browser import Sheet, browser, needs_browser
from support.run_records import fake_run

pytest.importorskip("plotly")
pytestmark = pytest.mark.slow


def cut_short(place: Path) -> None:
    fake_run(place / "run", stop=3)


def one_task(place: Path) -> None:
    fake_run(place / "run", tasks=1, classes=2, pictures=8)


def many_classes(place: Path) -> None:
    fake_run(
        place / "run", stream="seq-tinyimagenet", tasks=10, classes=200, buffer=5120, points=20, each=50, pictures=64
    )


def many_tasks(place: Path) -> None:
    fake_run(place / "run", tasks=50, classes=100, points=20, each=50, pictures=32)


def many_runs(place: Path) -> None:
    for k in range(40):
        method, buffer = ("itl", "b", "er", "derpp")[k % 4], (200, 500)[k // 4 % 2]
        fake_run(place / f"run{k:02d}", method=method, buffer=buffer, seed=k // 8, points=20, each=100, pictures=32)


def everything_at_once(place: Path) -> None:
    for k in range(12):
        fake_run(place / f"run{k:02d}", seed=k, tasks=50, classes=200, points=20, each=20, pictures=32)


def slowness() -> float:
    """How many times slower than a usual core this one is at present, 1 at least: a loop as long as a second of one."""
    begun = time.process_time()
    for _ in range(25_000_000):
        pass
    return max(1.0, time.process_time() - begun)


CASES = [cut_short, one_task, many_classes, many_tasks, many_runs, everything_at_once]


@pytest.fixture(params=CASES, ids=lambda case: case.__name__)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path, float]:
    """A report made by the command line, and the seconds of work it took."""
    request.param(tmp_path / "runs")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [
        sys.executable,
        "-m",
        "itl.cli",
        "report",
        str(tmp_path / "runs"),
        "--out",
        str(tmp_path / "report.html"),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert (done.returncode, done.stderr) == (0, "")
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return request.param.__name__, tmp_path / "report.html", spent


def test_it_is_quick_small_and_right_in_a_browser_and_on_a_phone(case: tuple[str, Path, float]) -> None:
    name, page, spent = case
    assert page.stat().st_size < 10_000_000
    assert spent < (10 if name == "everything_at_once" else 5) * slowness()  # that one reads 100 MB of records
    needs_browser()
    with browser() as chromium:
        for width in (1100, 390):
            sheet = Sheet(chromium, page, width=width)
            for tab in sheet.tabs():
                sheet.open(tab)
                assert sheet.overflow() == [], (width, tab)
            assert sheet.said == []
            assert sheet.fetched == []
            CHECKS.get(name, lambda *_: None)(sheet, page)
            sheet.close()


def check_cut_short(sheet: Sheet, page: Path) -> None:
    sheet.open("Overview")
    assert "interrupted at task 3, projection" in sheet.page.locator(".note").inner_text()
    assert "2 tasks done" in sheet.page.locator(".note").inner_text()
    sheet.open("Tasks")
    assert sheet.plot("matrix/").evaluate("(p) => p.data[0].z.flat().filter((v) => v !== null).length") == 3


def check_one_task(sheet: Sheet, page: Path) -> None:
    sheet.open("Overview")
    assert "one task only" in sheet.page.locator(".cards").inner_text()
    sheet.open("Tasks")
    assert sheet.marks("matrix/") == [1]


def check_many_classes(sheet: Sheet, page: Path) -> None:
    sheet.open("Tasks")
    shape = sheet.plot("confusion/").evaluate("(p) => [p.data[0].z.length, p.data[0].z[0].length]")
    assert shape == [200, 200]
    whole = sheet.plot("confusion/").evaluate("(p) => p.data[0].z.flat().reduce((a, b) => a + b, 0)")
    assert whole == 200 * 50
    sheet.open("Memory")
    assert sheet.marks("arrivals/") == [2000]
    assert "2000 of 5120 shown" in str(sheet.plot("arrivals/").get_attribute("aria-label"))


def check_many_tasks(sheet: Sheet, page: Path) -> None:
    sheet.open("Tasks")
    given = RunFolder(page.parent / "runs/run").read("result.json")["class_il_matrix"]
    report_run = sheet.plot("matrix/").evaluate("(p) => p.data[0].z")
    assert len(report_run) == 50
    assert f"{report_run[49][7]:.2f}" == f"{given[49][7]:.2f}"
    sheet.open("Stages")
    assert len(sheet.plot("breakdown/").evaluate("(p) => p.data.map((t) => t.name)")) == 51


def check_many_runs(sheet: Sheet, page: Path) -> None:
    sheet.open("Overview")
    assert sheet.page.locator(".cells tbody tr").count() == 8
    sheet.open("Stages")
    offered = sheet.page.locator("[role=tabpanel]:not([hidden]) select[data-name=run]").first.locator("option").count()
    assert offered == 40


def check_everything(sheet: Sheet, page: Path) -> None:
    note = sheet.page.locator(".note").inner_text()
    told = re.search(r"(\d+) of 12 runs", note)
    assert told is not None
    sheet.open("Stages")
    offered = sheet.page.locator("[role=tabpanel]:not([hidden]) select[data-name=run]").first.locator("option").count()
    assert offered == int(told[1]) >= 3


CHECKS: dict[str, Any] = {
    "cut_short": check_cut_short,
    "one_task": check_one_task,
    "many_classes": check_many_classes,
    "many_tasks": check_many_tasks,
    "many_runs": check_many_runs,
    "everything_at_once": check_everything,
}
