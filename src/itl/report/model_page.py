"""The page about a model of one's own images: its history, the accuracy of its classes, and its memory."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from itl.report.chart import Axis, Chart, HeatMap, Series, compact_json, encode
from itl.report.image_sheets import sheet
from itl.report.page import render, write_page
from itl.report.tabs import FigureSpec, PageContents, Tab
from itl.results.image_selection import balanced_subset

MAX_TILES = 400  # images of the memory


@dataclass(frozen=True)
class LessonAccuracy:
    """Test accuracies in percent right after a lesson: of all images, and by class. None: not known."""

    name: str
    overall: float | None
    classes: Mapping[str, float]


@dataclass(frozen=True)
class ModelRecord:
    """What the page shows about a model.

    Attributes:
        name: Name of the model's folder.
        facts: Names and values of its main properties.
        history: Date and description of every change.
        classes: Class names in the order in which they were learned.
        lessons: Accuracies after each lesson.
        pixels: Images of the memory, uint8 `[n, channels, height, width]`.
        labels: The class of each of them, as an index of `classes`.
        tasks: The number of the task (from 1) that each of them was learned in.
    """

    name: str
    facts: Sequence[tuple[str, str]]
    history: Sequence[tuple[str, str]]
    classes: Sequence[str]
    lessons: Sequence[LessonAccuracy]
    pixels: np.ndarray
    labels: np.ndarray
    tasks: np.ndarray


def write_model_report(model: ModelRecord, path: str | os.PathLike[str]) -> None:
    """Write the page of a model.

    Raises:
        UserError: The file cannot be written.
    """
    charts: dict[str, str] = {}
    lead = []
    if model.lessons:
        charts["lessons"], charts["classes"] = encode(lesson_chart(model)), encode(class_chart(model))
        caption = "Share of the held-out test images that the model classifies correctly right after each lesson"
        lead = [
            FigureSpec("lessons", "Accuracy over lessons", f"{caption}."),
            FigureSpec("classes", "Accuracy of every class", f"{caption}. A row from left to right shows forgetting."),
        ]
    views = [FigureSpec("held", "Content of the memory", "Images of each class in the memory.")]
    charts["held"] = encode(memory_chart(model))
    if len(model.pixels):
        charts["sheet"] = compact_json(gallery(model))
        views.append(FigureSpec("sheet", "Its images", "Images of the memory by class.", kind="gallery"))
    contents = PageContents([Tab("Memory", views)] if len(model.labels) else [], charts, lead=lead)
    subtitle = f"{len(model.classes)} classes · {len(model.lessons)} lessons · {len(model.labels)} images in memory"
    write_page(render(model.name, subtitle, _overview(model), contents), path)


def lesson_chart(model: ModelRecord) -> Chart:
    """Accuracy on the test images of all lessons so far, after each lesson."""
    names = [f"{number}. {lesson.name}" for number, lesson in enumerate(model.lessons, 1)]
    accuracies = [lesson.overall for lesson in model.lessons]
    series = Series("all test images", accuracies, names, kind="bars", role="a", hover=names)
    return Chart("Accuracy", x=Axis(categories=tuple(names)), y=Axis("accuracy, %", 0.0, 104.0), series=(series,))


def class_chart(model: ModelRecord) -> Chart:
    """The accuracy of every class (row) after each lesson (column)."""
    columns = tuple(f"{number}. {lesson.name}" for number, lesson in enumerate(model.lessons, 1))
    values = tuple(tuple(lesson.classes.get(name) for lesson in model.lessons) for name in model.classes)
    heatmap = HeatMap(columns, tuple(model.classes), values, labels=("class", "after"))
    return Chart("Accuracy by class", x=Axis("after lesson"), y=Axis("class"), heatmap=heatmap)


def memory_chart(model: ModelRecord) -> Chart:
    """The number of images of each class in the memory."""
    counts = np.bincount(model.labels, minlength=len(model.classes)).tolist()
    names = list(reversed(model.classes))
    series = Series("images", list(reversed(counts)), names, kind="bars", role="a")
    x, y = Axis("images", low=0.0), Axis(categories=tuple(names))
    return Chart("Images in memory", x=x, y=y, series=(series,), horizontal=True, unit="images")


def gallery(model: ModelRecord) -> dict[str, Any]:
    """The memory's images by class."""
    chosen = balanced_subset(model.labels, MAX_TILES)
    groups = []
    for label in dict.fromkeys(model.labels[chosen].tolist()):
        tiles = [tile for tile, k in enumerate(chosen) if model.labels[k] == label]
        tasks = [int(model.tasks[chosen[tile]]) for tile in tiles]
        name, held = model.classes[label], int((model.labels == label).sum())
        items = [
            {"tile": tile, "note": f"task {task}", "text": f"{name}, task {task}"}
            for tile, task in zip(tiles, tasks, strict=True)
        ]
        more = f"{held} images" + ("" if held == len(items) else f", {len(items)} shown")
        groups.append({"title": name, "more": more, "items": items})
    return {"sheet": sheet(model.pixels[chosen]), "groups": groups}


def _overview(model: ModelRecord) -> str:
    facts = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in model.facts)
    rows = "".join(f"<tr><td>{escape(date)}</td><td>{escape(text)}</td></tr>" for date, text in model.history)
    history = f'<div class="scroll"><table class="history"><tbody>{rows}</tbody></table></div>'
    return f'<dl class="settings">{facts}</dl><div id="lead"></div><h2>History</h2>{history}'
