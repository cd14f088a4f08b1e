"""Lessons that take a few seconds: 8x8 images, a memory of twelve."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from itl.apps.model import Model
from itl.apps.teaching import LessonResult, Teacher, TeachingOptions
from itl.callbacks.base import Callback
from support.image_folders import IMAGE_SETTINGS
from support.tiny import ONE_BLOCK

TINY_OPTIONS = TeachingOptions(size=8, buffer=12, device="cpu", settings={**IMAGE_SETTINGS, "net.name": ONE_BLOCK})


def teach(
    path: Path, *folders: Path, callback: Callback | None = None, **changes: Any
) -> tuple[Teacher, list[LessonResult]]:
    """Teach the folders to the model at `path`, creating it if necessary."""
    options = replace(TINY_OPTIONS, **changes)
    if (path / "CURRENT").exists() and "buffer" not in changes:
        options = replace(options, buffer=None)
    teacher = Teacher(path, folders, options)
    results = teacher.lesson_results()
    for result in results:
        teacher.teach(result, callback)
    return teacher, results


def model(path: Path) -> Model:
    """Open the model at `path`."""
    return Model.open(path, device="cpu")
