"""Plan lessons without learning them: classes, counts, imbalance, and an estimate of time and memory."""

from __future__ import annotations

from typing import Any

from itl import specialists
from itl.apps.images import printable_path
from itl.apps.teaching.default_settings import lesson_settings, new_model_settings, user_settings
from itl.apps.teaching.estimate import estimate_cost
from itl.apps.teaching.lesson import Lesson, LessonImages
from itl.apps.teaching.lesson_result import skipped_as_dicts
from itl.apps.teaching.teacher import Teacher
from itl.learner.validation import check_task
from itl.presets import settings_for
from itl.settings import Settings, build, flatten

SAMPLED_IMAGES = 16  # of each folder, decoded to find problems before anything is learned


def plan_lessons(teacher: Teacher) -> dict[str, Any]:
    """Return what a teacher would do, as the JSON-serializable dict of `itl learn --dry-run --json`.

    All files are counted, and a sample of each folder is decoded.

    Raises:
        UserError: If learning would be refused.
    """
    options, model = teacher.options, teacher.model
    teacher.lesson_results()  # raises if another lesson is unfinished
    known = list(model.classes) if model else []
    lessons, settings = [], []
    for lesson in teacher.lessons:
        sample = lesson.sample(teacher.image_size, SAMPLED_IMAGES, teacher.interpolation())
        _check(teacher, lesson, sample, known)
        entry = _plan_lesson(lesson, sample, known)
        settings.append((_settings(teacher, entry["images"]), entry["images"]))
        lessons.append({**entry, "epochs": _epochs(settings[-1][0])})
        known += [name for name in lesson.files.train if name not in known]
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


def _check(teacher: Teacher, lesson: Lesson, sample: LessonImages, known: list[str]) -> None:
    """Refuse a lesson that would be refused when it is learned. Builds the network, but saves and trains nothing."""
    model = teacher.model_for(sample)
    if model.pending is not None:
        return
    names = list(lesson.files.train)
    task = model.task(sample.train.pixels[[k % len(sample.train) for k in range(len(names))]], names)
    model.learner.prepare(task)
    check_task(model.learner, task, is_new=True)
    model.learner.check_memory(len({*known, *names}))


def _epochs(settings: Settings) -> dict[str, int] | None:
    """Epochs on the new images and on the memory; None for a method that computes its classifier directly."""
    if not specialists.build(settings.specialist).optimizes:
        return None
    return {"images": settings.specialist.epochs, "memory": settings.tangent.epochs * (settings.generalist != "none")}


def _plan_lesson(lesson: Lesson, sample: LessonImages, known: list[str]) -> dict[str, Any]:
    train = {name: len(files) for name, files in lesson.files.train.items()}
    test = {name: len(files) for name, files in lesson.files.test.items()}
    rows = [{"class": c, "train": n, "test": test.get(c, 0), "known": c in known} for c, n in train.items()]
    return {
        "folder": printable_path(lesson.folder),
        "images": sum(train.values()),
        "held_out": lesson.held_out,
        "classes": rows,
        "imbalance": max(train.values()) / min(train.values()),
        "problems": skipped_as_dicts(sample.skipped),
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
