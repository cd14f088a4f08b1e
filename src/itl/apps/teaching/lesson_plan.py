"""Plan lessons without learning them: classes, counts, imbalance, and an estimate of time and memory."""

from __future__ import annotations

from typing import Any

from itl.apps.images import printable_path
from itl.apps.teaching.default_settings import lesson_settings, new_model_settings, user_settings
from itl.apps.teaching.estimate import estimate_cost
from itl.apps.teaching.lesson import Lesson
from itl.apps.teaching.lesson_result import skipped_as_dicts
from itl.apps.teaching.teacher import Teacher
from itl.presets import settings_for
from itl.settings import Settings, build, flatten


def plan_lessons(teacher: Teacher) -> dict[str, Any]:
    """Return what a teacher would do, as the JSON-serializable dict of `itl learn --dry-run --json`.

    Files are counted but not opened, so files that are not images count too.
    """
    options, model = teacher.options, teacher.model
    known = list(model.classes) if model else []
    lessons = []
    for lesson in teacher.lessons:
        lessons.append(_plan_lesson(lesson, known))
        known += [name for name in lesson.files.train if name not in known]
    settings = [(_settings(teacher, entry["images"]), entry["images"]) for entry in lessons]
    buffer = max(options.buffer or 0, model.learner.memory.size) if model else options.buffer_or_default
    stored = len(model.learner.memory) if model else 0
    cost = estimate_cost(settings, teacher.image_size, len(known), buffer, stored, options.device)
    net = settings[0][0].net
    return {
        "model": str(teacher.path),
        "exists": model is not None,
        "method": model.learner.method if model else options.method_or_default,
        "network": {"name": net.name, "width": net.width, "strided": net.strided},
        "size": teacher.image_size,
        "buffer": buffer,
        "lessons": lessons,
        "estimate": {"seconds": cost.seconds, "bytes": cost.bytes, "device": cost.device},
    }


def _plan_lesson(lesson: Lesson, known: list[str]) -> dict[str, Any]:
    train = {name: len(files) for name, files in lesson.files.train.items()}
    test = {name: len(files) for name, files in lesson.files.test.items()}
    rows = [{"class": c, "train": n, "test": test.get(c, 0), "known": c in known} for c, n in train.items()]
    return {
        "folder": printable_path(lesson.folder),
        "images": sum(train.values()),
        "held_out": lesson.held_out,
        "classes": rows,
        "imbalance": max(train.values()) / min(train.values()),
        "problems": skipped_as_dicts(lesson.files.skipped),
    }


def _settings(teacher: Teacher, images: int) -> Settings:
    """Return the settings that a lesson of `images` images would be learned with."""
    options, model = teacher.options, teacher.model
    if model is None:
        overrides = new_model_settings(options, teacher.image_size, images)
        return settings_for(options.method_or_default, None, options.buffer_or_default, overrides)
    learner = model.learner
    saved = flatten(learner.settings.model_dump())
    chosen = lesson_settings(images, learner.memory.size, learner.settings)
    return build({**saved, **chosen, **user_settings(model), **options.settings})
