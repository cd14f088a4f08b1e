"""Plan lessons without learning them: classes, counts, imbalance, and an estimate of time and memory."""

from __future__ import annotations

from typing import Any

from itl import specialists
from itl.apps.images import printable_path
from itl.apps.teaching.default_settings import LessonSize
from itl.apps.teaching.estimate import estimate_cost
from itl.apps.teaching.lesson import Lesson, LessonImages
from itl.apps.teaching.lesson_result import skipped_as_dicts
from itl.apps.teaching.teacher import Teacher
from itl.engine.batches import num_batches
from itl.learner.stage_estimate import images_per_epoch
from itl.learner.validation import check_task
from itl.settings import Settings

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
    buffer = teacher.buffer
    before = stored = len(model.learner.memory) if model else 0
    lessons, settings = [], []
    for lesson in teacher.lessons:
        sample = lesson.sample(teacher.image_size, SAMPLED_IMAGES, teacher.interpolation())
        _check(teacher, lesson, sample, known)
        entry = _plan_lesson(lesson, sample, known)
        known += [name for name in lesson.files.train if name not in known]
        has_new_classes = not all(row["known"] for row in entry["classes"])
        size = LessonSize(entry["images"], before, buffer, teacher.image_size, has_new_classes)
        settings.append((teacher.settings_for_lesson(size), entry["images"]))
        lessons.append({**entry, "epochs": _epochs(settings[-1][0], size)})
        before = size.after
    cost = estimate_cost(settings, teacher.image_size, len(known), buffer, stored, options.device)
    net, memory = settings[0][0].net, settings[0][0].memory
    return {
        "model": str(teacher.path),
        "exists": model is not None,
        "method": model.learner.method if model else options.method_or_default,
        "network": {"name": net.name, "width": net.width, "strided": net.strided},
        "size": teacher.image_size,
        "buffer": buffer if memory.policy != "none" else 0,
        "memory_bytes": buffer * 3 * teacher.image_size**2 if memory.policy != "none" else 0,
        "minutes": teacher.minutes,
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


def _epochs(settings: Settings, lesson: LessonSize) -> dict[str, Any] | None:
    """Maximum number of epochs on the new images, whether training may end sooner, and epochs on the memory.

    None for a method that computes its classifier directly.
    """
    if not specialists.build(settings.specialist).optimizes:
        return None
    training = settings.specialist
    steps = num_batches(images_per_epoch(settings, lesson.images, lesson.before), training.batch)
    epochs = training.epochs if training.steps is None else min(training.epochs, -(-training.steps // steps))
    return {
        "images": epochs,
        "until_converged": training.patience is not None,
        "memory": settings.tangent.epochs * (settings.generalist != "none"),
    }


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
