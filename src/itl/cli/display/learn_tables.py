"""Tables of what `itl learn` will do or has done, at most 80 columns wide."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from itl.cli.display.formatting import (
    MIN_NAME_WIDTH,
    format_bytes,
    format_duration,
    format_percent,
    plural,
    shorten,
)
from itl.cli.display.run_tables import next_step
from itl.cli.display.tables import plain_table

if TYPE_CHECKING:
    from itl.apps.model.calibration import Calibration
    from itl.apps.teaching import LessonResult, Teacher
    from itl.apps.teaching.held_out_evaluation import GroupAccuracy, HeldOutScores

MAX_LISTED = 10  # problems or classes; --json lists all
ACCURACY_COLUMNS = 49  # width of the columns beside the names in a table of accuracies
MIN_IMBALANCE = 1.5  # ratio of the largest to the smallest class that is worth a remark


def lesson_line(result: LessonResult) -> Text:
    """What was learned from one folder, in one line."""
    line = Text.assemble((shorten(result.lesson.name), "bold"), ": ")
    if not result.learned:
        return line.append(result.skip_reason)
    line.append(f"{plural(sum(result.train_counts.values()), 'image')} of {plural(len(result.train_counts), 'class')}")
    line.append(f" ({len(result.new_classes)} new)")
    if result.test_counts:
        line.append(f", {sum(result.test_counts.values())} more held out for testing")
    return line.append(f", {format_duration(result.seconds)}")


def learn_summary(
    teacher: Teacher, results: Sequence[LessonResult], report: HeldOutScores, width: int = 80
) -> RenderableType:
    """The end of `itl learn`: remarks, test accuracies, forgetting, and what was written, `width` columns wide."""
    parts: list[RenderableType] = []
    for result in results:
        parts += _remarks(result, str(teacher.path), teacher.minutes)
    if report.accuracy is not None:
        parts += ["", _grades("task", report.tasks, width), "", _grades("class", report.classes, width), ""]
        accuracy = f"{format_percent(report.accuracy)} %"
        parts.append(Text.assemble("accuracy ", (accuracy, "bold green"), _mean_forgetting(report)))
        if any(grade.accuracy is None and grade.accuracy_when_taught is not None for grade in report.tasks):
            parts.append("–: the folder has been moved or deleted, so its current accuracy is unknown")
    model = teacher.model
    if model is not None:
        memory = model.learner.memory
        content = f", {len(memory)} of {memory.size} images in memory" if memory.size else ", no memory"
        learned = any(result.learned for result in results)
        line = f"{'wrote' if learned else 'unchanged:'} {teacher.path} ({plural(len(model.classes), 'class')}{content})"
        parts.append(Text(line, no_wrap=True, overflow="ignore"))
        if learned:
            parts.append(_calibration_line(model.calibration, report))
        parts.append(next_step(f"itl predict {teacher.path} IMAGE"))
    return Group(*parts)


def _calibration_line(calibration: Calibration, report: HeldOutScores) -> str:
    """Whether confidence and "unknown" are calibrated, and on what."""
    from itl.apps.model.calibration import MIN_IMAGES  # deferred: imports torch

    if not calibration.images:
        available = sum(group.images for group in report.classes)
        return f'confidence not calibrated, no "unknown": {available} held-out images, {MIN_IMAGES} are needed'
    missing = sum(not group.images for group in report.classes)
    without = f", none of {plural(missing, 'class')}" if missing else ""
    return f'confidence and "unknown" calibrated on {calibration.images} held-out images{without}'


def _remarks(result: LessonResult, model: str, minutes: float) -> list[RenderableType]:
    """Whether the time was short, changes of the memory, and files that were skipped."""
    remarks: list[RenderableType] = []
    if result.time_limit_reached:
        limit = f"the limit of {minutes:g} min ended the training; it may reach more with a longer one (--minutes)"
        remarks.append(Text(f"{shorten(result.lesson.name)}: {limit}"))
    if result.memory_growth is not None:
        before, after = result.memory_growth
        remarks.append(f"the memory has grown from {before} to {after} images, to hold every class")
    if result.replayed:
        remarks.append(f"learned {plural(result.replayed, 'image')} of earlier folders again")
    if result.dropped_classes:
        remarks.append(Text(f"the memory no longer holds an image of {_name_list(result.dropped_classes)}"))
    for name, (old, new) in list(result.fallen_classes.items())[:MAX_LISTED]:
        fall = f"{format_percent(old)} to {format_percent(new)} %"
        advice = f"learn more images of it, or undo the lesson: itl undo {model}"
        remarks.append(Text(f"{shorten(name)} fell from {fall} in this lesson; {advice}"))
    if result.skipped:
        count = len(result.skipped)
        remarks.append(Text(f"{plural(count, 'item')} of {shorten(result.lesson.name)} skipped:"))
        remarks += [Text(f"  {problem}", overflow="fold") for problem in result.skipped[:MAX_LISTED]]
        if count > MAX_LISTED:
            remarks.append(f"  … and {count - MAX_LISTED} more (--json lists all)")
    return remarks


def _grades(kind: str, grades: Sequence[GroupAccuracy], width: int) -> Table:
    """One row per task or class: accuracy now, accuracy when it was last taught, and the difference."""
    table = plain_table()
    table.add_column(kind, overflow="fold")
    for heading in ("test images", "accuracy", "when learned", "forgotten"):
        table.add_column(heading, justify="right", style="bold" if heading == "accuracy" else None)
    for grade in grades:
        images = str(grade.images) if grade.images else "–"
        percents = map(format_percent, (grade.accuracy, grade.accuracy_when_taught, grade.forgotten))
        table.add_row(Text(shorten(grade.name, max(width - ACCURACY_COLUMNS, MIN_NAME_WIDTH))), images, *percents)
    return table


def _mean_forgetting(report: HeldOutScores) -> str:
    """Mean forgetting over the tasks for which it is known, if there are several."""
    values = [grade.forgotten for grade in report.tasks if grade.forgotten is not None]
    return f"   forgotten {sum(values) / len(values):.1f}" if len(values) > 1 else ""


def plan_summary(plan: dict[str, Any]) -> RenderableType:
    """What `itl learn --dry-run` prints."""
    net = plan["network"]
    width = f" of width {net['width']}" if net["width"] else ""
    model = "existing model" if plan["exists"] else "new model"
    parts: list[RenderableType] = [
        Text.assemble((plan["model"], "bold"), f": {model}, {plan['method']}, {net['name']}{width},"),
        Text(f"images of {plan['size']} x {plan['size']} pixels, {_memory(plan)}"),
    ]
    for lesson in plan["lessons"]:
        table = plain_table()
        table.add_column(shorten(lesson["folder"]), overflow="fold")
        for heading in ("train", "test", ""):
            table.add_column(heading, justify="right")
        for row in lesson["classes"]:
            status = "known" if row["known"] else "new"
            table.add_row(Text(shorten(row["class"])), str(row["train"]), str(row["test"]), status)
        total = f"{lesson['images']} images to learn"
        if lesson["imbalance"] >= MIN_IMBALANCE:
            total += f"; the largest class has {lesson['imbalance']:.1f} times as many as the smallest"
        if lesson["epochs"] is not None:
            total += f"; {_epochs(lesson['epochs'])}"
        parts += ["", table, total]
        parts += [Text(f"skipped: {p['path']}: {p['why']}", overflow="fold") for p in lesson["problems"][:MAX_LISTED]]
    estimate = plan["estimate"]
    cost = f"about {format_duration(estimate['seconds'])} and {format_bytes(estimate['bytes'])} of memory"
    parts += ["", f"{cost} on {estimate['device']}; dry run, nothing was learned"]
    return Group(*parts)


def _memory(plan: dict[str, Any]) -> str:
    """The size of the memory, in images and in bytes of pixels."""
    if not plan["buffer"]:
        return "none of them in memory"
    return f"up to {plan['buffer']} of them in memory ({format_bytes(plan['memory_bytes'])} of pixels)"


def _epochs(epochs: dict[str, Any]) -> str:
    """How long a lesson is trained."""
    number = plural(epochs["images"], "epoch")
    until = f"until accuracy stops improving, at most {number}" if epochs["until_converged"] else number
    return until + (f", {epochs['memory']} on the memory" if epochs["memory"] else "")


def _name_list(names: Sequence[str]) -> str:
    """Names separated by commas; the last ones are only counted if there are many."""
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return ", ".join(shorten(name) for name in names[:MAX_LISTED]) + more
