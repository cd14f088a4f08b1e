"""Reports of unusual runs are correct, fast to make, small, and fit a narrow screen."""

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
from support.browser import ReportPage, browser, needs_browser
from support.run_records import fake_run

pytestmark = pytest.mark.slow


def interrupted(folder: Path) -> None:
    fake_run(folder / "run", stop=3)


def one_task(folder: Path) -> None:
    fake_run(folder / "run", tasks=1, classes=2, pictures=8)


def many_classes(folder: Path) -> None:
    fake_run(
        folder / "run", stream="seq-tinyimagenet", tasks=10, classes=200, buffer=5120, points=20, each=50, pictures=64
    )


def many_tasks(folder: Path) -> None:
    fake_run(folder / "run", tasks=50, classes=100, points=20, each=50, pictures=32)


def many_runs(folder: Path) -> None:
    for k in range(40):
        method, buffer = ("itl", "b", "er", "derpp")[k % 4], (200, 500)[k // 4 % 2]
        fake_run(folder / f"run{k:02d}", method=method, buffer=buffer, seed=k // 8, points=20, each=100, pictures=32)


def everything_at_once(folder: Path) -> None:
    for k in range(12):
        fake_run(folder / f"run{k:02d}", seed=k, tasks=50, classes=200, points=20, each=20, pictures=32)


def slowness() -> float:
    """How much slower this core is now than a typical one (at least 1), by a loop that takes one second there."""
    start = time.process_time()
    for _ in range(25_000_000):
        pass
    return max(1.0, time.process_time() - start)


CASES = [interrupted, one_task, many_classes, many_tasks, many_runs, everything_at_once]


@pytest.fixture(params=CASES, ids=lambda case: case.__name__)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path, float]:
    """Name of the case, the report made by `itl report`, and the CPU seconds that took."""
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


def test_report_is_fast_small_and_correct_in_a_browser(case: tuple[str, Path, float]) -> None:
    name, page, spent = case
    assert page.stat().st_size < 10_000_000
    # Three times the target, because other processes can slow a core down. The largest case reads 100 MB of records.
    assert spent < (30 if name == "everything_at_once" else 15) * slowness()
    needs_browser()
    with browser() as chromium:
        for width in (1100, 390):
            report_page = ReportPage(chromium, page, width=width)
            for tab in report_page.tabs():
                report_page.open(tab)
                assert report_page.overflow() == [], (width, tab)
            assert report_page.messages == []
            assert report_page.external_requests == []
            CHECKS.get(name, lambda *_: None)(report_page, page)
            report_page.close()


def offered_runs(report_page: ReportPage) -> list[str]:
    """The single runs that the open tab offers; means over seeds are left out."""
    select = report_page.page.locator("[role=tabpanel]:not([hidden]) select[data-name=run]").first
    return [name for name in select.locator("option").all_inner_texts() if "mean of" not in name]


def check_interrupted(report_page: ReportPage, page: Path) -> None:
    report_page.open("Overview")
    assert "interrupted at task 3, projection" in report_page.page.locator(".note").inner_text()
    assert "2 tasks done" in report_page.page.locator(".note").inner_text()
    report_page.open("Tasks")
    assert report_page.plot("matrix/").evaluate("(p) => p.data[0].z.flat().filter((v) => v !== null).length") == 3


def check_one_task(report_page: ReportPage, page: Path) -> None:
    report_page.open("Overview")
    assert "one task only" in report_page.page.locator(".cards").inner_text()
    report_page.open("Tasks")
    assert report_page.marks("matrix/") == [1]


def check_many_classes(report_page: ReportPage, page: Path) -> None:
    report_page.open("Tasks")
    shape = report_page.plot("confusion/").evaluate("(p) => [p.data[0].z.length, p.data[0].z[0].length]")
    assert shape == [200, 200]
    total = report_page.plot("confusion/").evaluate("(p) => p.data[0].z.flat().reduce((a, b) => a + b, 0)")
    assert total == 200 * 50
    report_page.open("Memory")
    assert report_page.marks("arrivals/") == [2000]
    assert "2000 of 5120 shown" in str(report_page.plot("arrivals/").get_attribute("aria-label"))


def check_many_tasks(report_page: ReportPage, page: Path) -> None:
    report_page.open("Tasks")
    recorded = RunFolder(page.parent / "runs/run").read("result.json")["class_il_matrix"]
    shown = report_page.plot("matrix/").evaluate("(p) => p.data[0].z")
    assert len(shown) == 50
    assert f"{shown[49][7]:.2f}" == f"{recorded[49][7]:.2f}"
    report_page.open("Stages")
    assert len(report_page.plot("breakdown/").evaluate("(p) => p.data.map((t) => t.name)")) == 51


def check_many_runs(report_page: ReportPage, page: Path) -> None:
    report_page.open("Overview")
    assert report_page.page.locator(".cells tbody tr").count() == 8
    report_page.open("Stages")
    assert len(offered_runs(report_page)) == 40


def check_everything(report_page: ReportPage, page: Path) -> None:
    note = report_page.page.locator(".note").inner_text()
    shown_runs = re.search(r"(\d+) of 12 runs", note)
    assert shown_runs is not None
    report_page.open("Stages")
    assert len(offered_runs(report_page)) == int(shown_runs[1]) >= 3


CHECKS: dict[str, Any] = {
    "interrupted": check_interrupted,
    "one_task": check_one_task,
    "many_classes": check_many_classes,
    "many_tasks": check_many_tasks,
    "many_runs": check_many_runs,
    "everything_at_once": check_everything,
}
