"""Takes the screenshots of reports in docs/img: `python benchmarks/screenshots.py` (needs playwright and Chromium)."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from itl.report import write_report
from itl.results import find_runs

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
RUN = "results/seq-digits/test/seq-digits-itl-20-seed0"
MANY = ("results/seq-digits/test", "results/seq-digits/methods")
# name, runs, tab, width, height, theme
SCREENSHOTS = (
    ("report-overview", (RUN,), "Overview", 1000, 900, "light"),
    ("report-compare", MANY, "Compare", 1000, 1150, "light"),
    ("report-tasks", MANY, "Tasks", 1000, 900, "dark"),
    ("report-phone", MANY, "Overview", 390, 900, "light"),
)


def take(chromium: Any, page: Path, name: str, tab: str, width: int, height: int, theme: str) -> None:
    """Write one screenshot of the top of a tab."""
    from support.browser import ReportPage

    report_page = ReportPage(chromium, page, width=width, theme=theme)
    report_page.open(tab)
    report_page.page.set_viewport_size({"width": width, "height": height})
    report_page.page.wait_for_timeout(500)
    report_page.page.screenshot(path=ROOT / "docs/img" / f"{name}.png")
    report_page.close()


def main() -> None:
    """Write all screenshots."""
    from support.browser import browser

    with tempfile.TemporaryDirectory() as folder, browser() as chromium:
        for name, runs, tab, width, height, theme in SCREENSHOTS:
            page = Path(folder) / f"{name}.html"
            write_report(find_runs([ROOT / run for run in runs])[0], page)
            take(chromium, page, name, tab, width, height, theme)


if __name__ == "__main__":
    main()
