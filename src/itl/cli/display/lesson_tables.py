"""What a learn would do, and what it did: tables of 80 columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from itl.cli.display.run_tables import clock, percent, plain_table

if TYPE_CHECKING:
    from itl.apps.teaching import LessonResult, Teacher
    from itl.apps.teaching.held_out_evaluation import GroupAccuracy, HeldOutScores

SHOWN = 10  # problems and classes of a list that are named; --json names all
NAME = 40  # letters of a name


def told(result: LessonResult) -> Text:
    """One lesson in a line."""
    out = Text.assemble((short(result.lesson.name), "bold"), ": ")
    if not result.learned:
        return out.append(result.skip_reason)
    images, classes = sum(result.train_counts.values()), len(result.train_counts)
    out.append(f"{images} image{'s' * (images != 1)} of {classes} class{'es' * (classes != 1)}")
    out.append(f" ({len(result.new_classes)} new)")
    if result.test_counts:
        out.append(f", {sum(result.test_counts.values())} more to test on")
    return out.append(f", {clock(result.seconds)}")


def view(
    teacher: Teacher, results: Sequence[LessonResult], report: HeldOutScores, brief: bool = False
) -> RenderableType:
    """The end of a learn: what was learned (not if `brief`), how well it is known, what was lost, what is wrong."""
    parts: list[RenderableType] = [] if brief else [told(result) for result in results]
    for result in results:
        parts += _remarks(result)
    if report.accuracy is not None:
        parts += ["", _grades("task", report.tasks), "", _grades("class", report.classes), ""]
        parts.append(Text.assemble("accuracy ", (f"{percent(report.accuracy)} %", "bold green"), _lost(report)))
        if any(grade.accuracy is None and grade.accuracy_when_taught is not None for grade in report.tasks):
            parts.append("–: its folder is not where it was; what is left of it is not known")
    model = teacher.model
    if model is not None:
        memory = model.learner.memory
        held = f", {len(memory)} of {memory.size} images in memory" if memory.size else ", no memory"
        done = "wrote" if any(result.learned for result in results) else "nothing new for"
        line = f"{done} {teacher.path} ({len(model.classes)} classes{held})"
        parts.append(Text(line, no_wrap=True, overflow="ignore"))
    return Group(*parts)


def _remarks(result: LessonResult) -> list[RenderableType]:
    """What the user should know beside the numbers."""
    out: list[RenderableType] = []
    if result.memory_growth is not None:
        before, after = result.memory_growth
        out.append(f"the memory has grown from {before} to {after} images, to hold every class")
    if result.dropped_classes:
        out.append(Text(f"the memory holds no image of {listed(result.dropped_classes)} any more"))
    if result.skipped:
        count = len(result.skipped)
        out.append(Text(f"{count} thing{'s' * (count != 1)} left out of {short(result.lesson.name)}:"))
        out += [Text(f"  {problem}", overflow="fold") for problem in result.skipped[:SHOWN]]
        if count > SHOWN:
            out.append(f"  … and {count - SHOWN} more (--json lists all)")
    return out


def _grades(what: str, grades: Sequence[GroupAccuracy]) -> Table:
    """A row a task or class: accuracy now, when it was last taught, and what was lost."""
    table = plain_table()
    table.add_column(what, overflow="fold")
    for heading in ("test images", "accuracy", "was", "forgotten"):
        table.add_column(heading, justify="right", style="bold" if heading == "accuracy" else None)
    for grade in grades:
        images = str(grade.images) if grade.images else "–"
        table.add_row(
            Text(short(grade.name)),
            images,
            percent(grade.accuracy),
            percent(grade.accuracy_when_taught),
            percent(grade.forgotten),
        )
    return table


def _lost(report: HeldOutScores) -> str:
    """What was forgotten, on average over the tasks that can tell."""
    lost = [grade.forgotten for grade in report.tasks if grade.forgotten is not None]
    return f"   forgotten {sum(lost) / len(lost):.1f}" if len(lost) > 1 else ""


def plan_view(plan: dict[str, Any]) -> RenderableType:
    """What a learn would do."""
    net = plan["network"]
    width = f" of width {net['width']}" if net["width"] else ""
    head = "a model to be extended" if plan["exists"] else "a new model"
    parts: list[RenderableType] = [
        Text.assemble((plan["model"], "bold"), f": {head}, {plan['method']}, {net['name']}{width},"),
        Text(f"images of {plan['size']} x {plan['size']} pixels, {plan['buffer']} of them in memory"),
    ]
    for lesson in plan["lessons"]:
        table = plain_table()
        table.add_column(short(lesson["folder"]), overflow="fold")
        for heading in ("to learn", "to test", ""):
            table.add_column(heading, justify="right")
        for row in lesson["classes"]:
            known = "known" if row["known"] else "new"
            table.add_row(Text(short(row["class"])), str(row["train"]), str(row["test"]), known)
        total = f"{lesson['images']} files to learn from"
        if lesson["imbalance"] >= 1.5:
            total += f"; the largest class has {lesson['imbalance']:.1f} times as many as the smallest"
        parts += ["", table, total]
        parts += [Text(f"left out: {p['path']}: {p['why']}", overflow="fold") for p in lesson["problems"][:SHOWN]]
    guess = plan["estimate"]
    gigabytes = guess["bytes"] / 2**30
    memory = f"{gigabytes:.1f} GiB" if gigabytes >= 1 else f"{guess['bytes'] / 2**20:.0f} MiB"
    parts += ["", f"about {clock(guess['seconds'])} and {memory} of memory on {guess['device']}; nothing was learned"]
    return Group(*parts)


def listed(names: Sequence[str]) -> str:
    """Names with commas between, not too many."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(short(name) for name in names[:SHOWN]) + more


def short(name: str) -> str:
    """A name that fits a table."""
    return name if len(name) <= NAME else name[: NAME - 1] + "…"
