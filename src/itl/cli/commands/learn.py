"""`itl learn`: teach a model folder from folders of images."""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import click

from itl.cli import options
from itl.cli.commands.run import terminal
from itl.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from itl.apps.teaching import LessonResult, Teacher


@click.command()
@click.argument("model", metavar="MODEL")
@click.argument("folders", metavar="FOLDER…", nargs=-1, required=True)
@click.option(
    "--size", type=int, metavar="N", help="Pixels images are brought to, 8 to 224. [default: what suits them]"
)
@click.option("--method", metavar="NAME", help="How to learn; see `itl methods`. [default: itl]")
@click.option("--buffer", type=int, metavar="N", help="Images in memory. [default: 200, more if classes need it]")
@click.option("--seed", type=int, metavar="N", help="Of everything random. [default: 0]")
@click.option("--epochs", type=int, metavar="N", help="Of the specialist. [default: what suits the number of images]")
@click.option("--set", "pairs", multiple=True, metavar="KEY=VALUE", help="Any setting; see `itl methods NAME`.")
@click.option("--weights", metavar="FILE", help="Start from a ResNet's weights (safetensors); for a new model.")
@click.option("--flip/--no-flip", default=None, help="A mirrored image keeps its class. [default: no]")
@click.option("--no-test", is_flag=True, help="Learn from every image, and hold none out to test on.")
@click.option("--again", is_flag=True, help="Learn a folder even if these very images were learned before.")
@click.option("--dry-run", is_flag=True, help="Show classes, counts, time and memory; learn nothing.")
@click.option("--wait", type=float, default=0.0, metavar="SECONDS", help="For another command on the same model.")
@click.option("--device", metavar="NAME", default="auto", show_default=True, help="auto, cpu or cuda.")
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as one JSON object and nothing else.")
@click.option("--quiet", is_flag=True, help="Print nothing but the model's folder.")
def learn(model: str, folders: tuple[str, ...], **given: Any) -> None:
    """Teach a model folder from folders of images, one task each; its sub-folders are the classes.

    MODEL is made by the first call and extended by later ones: classes of new names are new, of known names the same.
    A FOLDER's own train/ and test/ are honoured; without them about a fifth of each class is held out to test on.
    """
    if given["as_json"] and given["quiet"]:
        raise UserError("give --json or --quiet, not both")
    own = options.settings(given["pairs"], given["epochs"])

    from itl.apps.teaching import Teacher, TeachingOptions, plan_lessons
    from itl.apps.teaching.options import check_model_path
    from itl.checkpoint.lock import lock

    chosen = TeachingOptions(
        size=given["size"],
        method=given["method"],
        buffer=given["buffer"],
        seed=given["seed"],
        flip=given["flip"],
        settings=own,
        weights=given["weights"],
        test=not given["no_test"],
        again=given["again"],
        device=given["device"],
    )
    if given["dry_run"]:
        _show_plan(plan_lessons(Teacher(model, folders, chosen)), given["as_json"])
        return
    check_model_path(model)  # before a lock is laid into somebody's photographs
    with lock(model, given["wait"]):
        teacher = Teacher(model, folders, chosen)
        console = None if given["as_json"] or given["quiet"] else terminal()
        _show(teacher, _teach(teacher, console), given, told=console is not None)


def _teach(teacher: Teacher, console: Console | None) -> list[LessonResult]:
    """All lessons; Ctrl-C ends the round, saves, and is a line that says how to go on."""
    from itl.cli.display.lesson_progress import Lessons, Stop
    from itl.cli.display.lesson_tables import told

    results = teacher.lesson_results()
    try:
        with Stop(console) as stop:
            for number, result in enumerate(results, 1):
                which = f"{number} of {len(results)}, " if len(results) > 1 else ""
                display = None if console is None else Lessons(console, teacher, result, which)
                with display or nullcontext():
                    teacher.teach(result, display, None if display is None else display.loads, stop)
                if console is not None:
                    console.print(told(result))
    except KeyboardInterrupt:
        kept = (teacher.path / "CURRENT").exists()
        line = f"{teacher.path} keeps what was learned" if kept else "nothing was saved yet"
        raise KeyboardInterrupt(f"interrupted; {line}, and the same command goes on") from None
    return results


def _show(teacher: Teacher, results: list[LessonResult], given: dict[str, Any], told: bool) -> None:
    """The end: tables, one JSON object, or the model's folder. `told`: each lesson had its line already."""
    if given["quiet"]:
        click.echo(str(teacher.path))
        return
    report = teacher.evaluate()
    if given["as_json"]:
        lessons = [result.to_dict() for result in results]
        click.echo(json.dumps({"model": str(teacher.path), "lessons": lessons, **report.to_dict()}, indent=1))
        return
    from rich.console import Console

    from itl.cli.display.lesson_tables import view

    Console(highlight=False).print(view(teacher, results, report, told))


def _show_plan(planned: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(planned, indent=1))
        return
    from rich.console import Console

    from itl.cli.display.lesson_tables import plan_view

    Console(highlight=False).print(plan_view(planned))
