"""What a learn would do, before it does it: classes, counts, imbalance, time and memory."""

from __future__ import annotations

from typing import Any

from itl.apps.images import printable_path
from itl.apps.teaching.default_settings import for_lesson, for_new, own_settings
from itl.apps.teaching.estimate import estimate
from itl.apps.teaching.lesson import Lesson
from itl.apps.teaching.teacher import Teacher
from itl.presets import settings_for
from itl.settings import Settings, build, flatten


def plan_lessons(teacher: Teacher) -> dict[str, Any]:
    """As JSON. Files are counted, not opened: one that is no image is found out when it is read."""
    options, model = teacher.options, teacher.model
    known = list(model.classes) if model else []
    lessons = []
    for lesson in teacher.lessons:
        lessons.append(_lesson(lesson, known))
        known += [name for name in lesson.files.train if name not in known]
    settings = [(_settings(teacher, entry["images"]), entry["images"]) for entry in lessons]
    buffer = max(options.buffer or 0, model.learner.memory.size) if model else options.room
    held = len(model.learner.memory) if model else 0
    guess = estimate(settings, teacher.size, len(known), buffer, held, options.device)
    net = settings[0][0].net
    return {
        "model": str(teacher.path),
        "exists": model is not None,
        "method": model.learner.method if model else options.way,
        "network": {"name": net.name, "width": net.width, "strided": net.strided},
        "size": teacher.size,
        "buffer": buffer,
        "lessons": lessons,
        "estimate": {"seconds": guess.seconds, "bytes": guess.bytes, "device": guess.device},
    }


def _lesson(lesson: Lesson, known: list[str]) -> dict[str, Any]:
    train = {name: len(files) for name, files in lesson.files.train.items()}
    test = {name: len(files) for name, files in lesson.files.test.items()}
    rows = [{"class": c, "train": n, "test": test.get(c, 0), "known": c in known} for c, n in train.items()]
    return {
        "folder": printable_path(lesson.folder),
        "images": sum(train.values()),
        "held_out": lesson.held_out,
        "classes": rows,
        "imbalance": max(train.values()) / min(train.values()),
        "problems": [{"path": printable_path(p.path), "why": p.reason} for p in lesson.files.skipped],
    }


def _settings(teacher: Teacher, images: int) -> Settings:
    """The settings a lesson of so many images would be learned with."""
    options, model = teacher.options, teacher.model
    if model is None:
        return settings_for(options.way, None, options.room, for_new(options, teacher.size, images))
    learner = model.learner
    saved = flatten(learner.settings.model_dump())
    chosen = for_lesson(images, learner.memory.size, learner.settings)
    return build({**saved, **chosen, **own_settings(model), **options.settings})
