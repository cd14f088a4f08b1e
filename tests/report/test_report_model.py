"""The page about a model: history, accuracy of the classes over lessons, memory."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from itl.report import LessonAccuracy, ModelRecord, write_model_report
from support.browser import ReportPage, browser, needs_browser


def record(images: int = 6) -> ModelRecord:
    rng = np.random.default_rng(0)
    return ModelRecord(
        name="garden",
        facts=[("method", "itl"), ("tasks", "2")],
        history=[("2026-01-01", "learn monday: 6 images of 2 classes"), ("2026-01-02", "rename <ant> to bee")],
        classes=["ant", "bee", "cow"],
        lessons=[
            LessonAccuracy("monday", 90.0, {"ant": 80.0, "bee": 100.0}),
            LessonAccuracy("tuesday", 75.0, {"ant": 50.0, "bee": 75.0, "cow": 100.0}),
        ],
        pixels=rng.integers(0, 256, (images, 3, 8, 8)).astype(np.uint8),
        labels=np.arange(images) % 3,
        tasks=np.ones(images, int),
    )


def payload(path: Path) -> dict:
    found = re.search(r'id="payload">(.*?)</script>', path.read_text(), re.DOTALL)
    assert found is not None
    return dict(json.loads(found[1]))


def test_page_has_history_class_accuracies_and_memory(tmp_path: Path) -> None:
    write_model_report(record(), tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert "rename &lt;ant&gt; to bee" in text
    charts = payload(tmp_path / "page.html")["charts"]
    assert charts["classes"]["heatmap"]["values"] == [[80, 50], [100, 75], [None, 100]]
    assert charts["lessons"]["series"][0]["y"] == [90, 75]
    assert charts["held"]["series"][0]["y"] == [2, 2, 2]
    assert [group["title"] for group in charts["sheet"]["groups"]] == ["ant", "bee", "cow"]


def test_model_without_lessons_and_memory_has_a_page(tmp_path: Path) -> None:
    empty = ModelRecord("new", [], [], [], [], np.zeros((0, 3, 8, 8), np.uint8), np.zeros(0, int), np.zeros(0, int))
    write_model_report(empty, tmp_path / "page.html")
    assert payload(tmp_path / "page.html")["tabs"] == []


@pytest.mark.slow
def test_page_of_a_model_works_in_a_browser(tmp_path: Path) -> None:
    needs_browser()
    write_model_report(record(), tmp_path / "page.html")
    with browser() as chromium:
        report_page = ReportPage(chromium, tmp_path / "page.html")
        assert report_page.tabs() == ["Overview", "Memory"]
        report_page.wait_until_drawn()
        assert report_page.marks("classes") == [5]
        report_page.open("Memory")
        assert report_page.page.locator(".tile:visible").count() == 6
        assert (report_page.messages, report_page.overflow()) == ([], [])
