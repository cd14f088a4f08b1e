"""Teaching in a few seconds: pictures of 8 x 8, a memory of twelve."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from itl.apps.model import Model
from itl.apps.teaching import LessonResult, Teacher, TeachingOptions
from itl.callbacks.base import Callback
from support.image_folders import SMALL

QUICK = TeachingOptions(size=8, buffer=12, device="cpu", settings=SMALL)


def teach(
    path: Path, *folders: Path, callback: Callback | None = None, **changes: Any
) -> tuple[Teacher, list[LessonResult]]:
    options = replace(QUICK, **changes)
    if (path / "CURRENT").exists() and "buffer" not in changes:
        options = replace(options, buffer=None)
    teacher = Teacher(path, folders, options)
    results = teacher.lesson_results()
    for result in results:
        teacher.teach(result, callback)
    return teacher, results


def model(path: Path) -> Model:
    return Model.open(path, device="cpu")
