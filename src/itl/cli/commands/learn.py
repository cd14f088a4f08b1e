"""`itl learn`: teach a model from folders of images."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import click

from itl.cli import options
from itl.cli.output import echo, print_json, warn, warn_damaged_images
from itl.cli.parsing import parse_settings

if TYPE_CHECKING:
    from itl.apps.teaching import LessonResult, Teacher


@click.command()
@click.argument("model", metavar="MODEL")
@click.argument("folders", metavar="FOLDER…", nargs=-1, required=True)
@click.option(
    "--size", type=int, metavar="N", help="Scale images to N x N pixels, 8 to 224. [default: chosen from the images]"
)
@click.option(
    "--method",
    metavar="NAME",
    help="Method to train; `itl methods` lists them. [default: ridge on a pre-trained backbone, else itl]",
)
@click.option(
    "--buffer", type=int, metavar="N", help="Memory size in images. [default: as many as fit into 64 MiB of pixels]"
)
@click.option(
    "--replay-folders",
    is_flag=True,
    help="Also learn again from the images of earlier folders that still exist, not only from those in memory.",
)
@options.seed_option
@click.option(
    "--minutes",
    type=float,
    metavar="N",
    help="Time for training one lesson; it ends sooner if it makes no progress. Kept for later lessons. [default: 5]",
)
@options.lesson_epochs_option
@options.backbone_option
@options.settings_option
@click.option("--weights", metavar="FILE", help="Start a new model from the backbone's weights in a safetensors file.")
@click.option("--flip/--no-flip", default=None, help="Augment with mirrored images. [default: --no-flip]")
@click.option("--no-test", is_flag=True, help="Learn from all images; hold none out for testing.")
@click.option("--again", is_flag=True, help="Learn a folder even if the same images were learned before.")
@click.option("--dry-run", is_flag=True, help="Show classes, counts, epochs and the estimated cost only.")
@click.option(
    "--wait",
    type=float,
    default=0.0,
    metavar="SECONDS",
    help="Wait this long if another command is changing the model. [default: 0]",
)
@options.device_option
@click.option(
    "--threads",
    type=int,
    metavar="N",
    help="CPU threads. [default: the cores that are not busy, at least half of them; when resuming, as before]",
)
@options.json_option()
@options.quiet_option("the folder of the model")
def learn(model: str, folders: tuple[str, ...], **given: Any) -> None:
    """Teach a model from folders of images.

    Each FOLDER is one task; each of its subfolders contains the images of one class. The first call creates the folder
    MODEL, later calls extend it: a subfolder with a new name adds a class, one with a known name adds images to that
    class.

    If FOLDER has the subfolders train/ and test/, these are used. Otherwise about a fifth of each class is held out
    for testing.
    """
    options.exclusive(json=given["as_json"], quiet=given["quiet"])
    settings = parse_settings(given["pairs"], given["epochs"])
    if given["dry_run"]:
        _print_files(folders, silent=given["as_json"])

    from itl.apps.teaching import Teacher, TeachingOptions, plan_lessons
    from itl.apps.teaching.options import check_model_path
    from itl.checkpoint.lock import lock
    from itl.engine.device import use_idle_cores

    teaching = TeachingOptions(
        size=given["size"],
        method=given["method"],
        buffer=given["buffer"],
        seed=given["seed"],
        flip=given["flip"],
        settings=settings,
        backbone=given["backbone"],
        weights=given["weights"],
        test=not given["no_test"],
        again=given["again"],
        device=given["device"],
        threads=given["threads"],
        minutes=given["minutes"],
        replay_folders=given["replay_folders"],
    )
    use_idle_cores()
    if given["dry_run"]:
        _print_plan(plan_lessons(Teacher(model, folders, teaching)), given["as_json"])
        return
    check_model_path(model)  # before the lock file is created in a folder that is no model
    with lock(model, given["wait"]):
        teacher = Teacher(model, folders, teaching)
        if teacher.model is not None:
            warn_damaged_images(teacher.model)
        if (remark := teacher.thread_remark()) is not None:
            warn(remark)
        _print_results(teacher, _teach(teacher, given), given)


def _teach(teacher: Teacher, given: dict[str, Any]) -> list[LessonResult]:
    """Learn all folders and print a line after each. Ctrl-C saves the model and ends with one line."""
    from itl.apps.teaching.choices import model_choice, training_choice
    from itl.cli.display.learn_progress import GracefulInterrupt, LearnDisplay, LearnLog
    from itl.cli.display.learn_tables import lesson_line
    from itl.cli.display.live import live_console
    from itl.cli.display.tables import open_console

    console = live_console(given)
    results = teacher.lesson_results()
    silent = given["as_json"] or given["quiet"]
    if (choice := model_choice(teacher)) is not None and not silent:
        training = training_choice(teacher)
        open_console().print("\n".join([choice, *([training] if training else [])]), highlight=False, soft_wrap=True)
    try:
        with GracefulInterrupt(console) as interrupt:
            for number, result in enumerate(results, 1):
                position = f"folder {number} of {len(results)}, " if len(results) > 1 else ""
                display = None if console is None else LearnDisplay(console, teacher, result, position)
                log = LearnLog(result.lesson.name) if display is None and not silent else None
                with display or nullcontext():
                    progress = None if display is None else display.show_loading
                    teacher.teach(result, display or log, progress, interrupt)
                if not silent:
                    open_console().print(lesson_line(result))
    except KeyboardInterrupt:
        saved = (teacher.path / "CURRENT").exists()
        state = f"{teacher.path} keeps what it has learned." if saved else "Nothing was saved yet."
        raise KeyboardInterrupt(f"Interrupted. {state} To continue, repeat the command.") from None
    return results


def _print_results(teacher: Teacher, results: list[LessonResult], given: dict[str, Any]) -> None:
    """Print the test accuracies as tables, as JSON, or only the folder of the model."""
    if given["quiet"]:
        echo(str(teacher.path))
        return
    report = teacher.evaluate()
    if given["as_json"]:
        lessons = [result.to_dict() for result in results]
        print_json({"model": str(teacher.path), "lessons": lessons, **report.to_dict()})
        return
    from itl.cli.display.learn_tables import learn_summary
    from itl.cli.display.tables import open_console

    console = open_console()
    console.print(learn_summary(teacher, results, report, console.width))


def _print_files(folders: Sequence[str], silent: bool) -> None:
    """Count the files of folders at once: what follows imports torch, which takes seconds."""
    from itl.apps.images import printable_path, scan_folder
    from itl.cli.display.formatting import plural

    for folder in folders:
        found = scan_folder(folder)
        counts = [len(found.train[name]) + len(found.test.get(name, ())) for name in found.train]
        if not silent:
            least, most = min(counts), max(counts)
            each = f"{least}" if least == most else f"{least} to {most}"
            classes = plural(len(counts), "class")
            echo(f"{printable_path(folder)}: {plural(sum(counts), 'file')} of {classes}, {each} of each class")


def _print_plan(plan: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(plan)
        return
    from itl.cli.display.learn_tables import plan_summary
    from itl.cli.display.tables import open_console

    open_console().print(plan_summary(plan))
