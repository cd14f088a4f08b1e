"""`itl eval`: evaluate a model on a folder of labeled images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from itl.cli import options
from itl.cli.commands.predict import predict_batches
from itl.cli.output import echo, print_json, warn
from itl.errors import UserError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from itl.apps.images import SkippedPath, SortedCopies
    from itl.apps.model import Model
    from itl.apps.model.calibration import Predictions
    from itl.apps.model.evaluation import EvaluationResult

MAX_MATRIX_CLASSES = 12  # the confusion matrix of more classes is not printed
NUMBER_COLUMNS = 30  # width of the columns beside the two names of a class and its most frequent mistake


@click.command("eval")
@click.argument("model", metavar="MODEL")
@click.argument("folder", metavar="FOLDER")
@click.option("--held-out", is_flag=True, help="Use only the images that `itl learn` would hold out for testing.")
@click.option(
    "--wrong",
    metavar="OUT",
    help="Copy wrongly classified images to OUT/CLASS, by the class that FOLDER gives them; OUT must be new or empty.",
)
@options.json_option()
@options.device_option
def evaluate(model: str, folder: str, held_out: bool, wrong: str | None, as_json: bool, device: str) -> None:
    """Evaluate a model on a folder of labeled images.

    Each subfolder of FOLDER contains the images of one class; if FOLDER has a test/, that is used. Shows accuracy per
    class, the most frequent confusions, calibration (the difference between confidence and accuracy), and how accuracy
    rises if unfamiliar images are rejected as "unknown". For classes that were never taught, it shows how many images
    are rejected.

    With --wrong, the names of the copies start with their rank, the model's confidence and the class it predicts: the
    most confident mistakes come first, because these are often wrong labels. Move such images to the right folder,
    delete what you do not want, and teach the rest: itl learn MODEL OUT.
    """
    from itl.apps.images import scan_folder
    from itl.apps.model import Model
    from itl.apps.model.evaluation import evaluate_predictions
    from itl.apps.teaching.held_out_evaluation import recorded_train_only_hashes, relative_folder

    opened = Model.open(model, device=device, last_finished=True, memory=False)
    found = scan_folder(folder)
    if held_out:
        found = found.with_held_out(recorded_train_only_hashes(opened, relative_folder(opened, found.folder)))
    classes = found.test if held_out or found.has_test else found.train
    unknown_classes = sorted(set(classes) - set(opened.classes))
    pairs = [(path, name) for name, files in classes.items() if name not in unknown_classes for path in files]
    if not pairs:
        raise UserError(f"{folder} has no images of the classes that {model} knows: {', '.join(opened.classes)}.")
    problems = list(found.skipped)
    copies = None if wrong is None else _copies_outside(wrong, folder)
    predictions, labels, files = _predict(opened, pairs, problems)
    if not labels:
        raise UserError(f"No image in {folder} could be read. The first problem is {problems[0]}.")
    result = evaluate_predictions(opened.classes, predictions.probabilities, labels)
    strange = [(path, name) for name in unknown_classes for path in classes[name]]
    rejection = _rejection(opened, predictions, labels, _predict(opened, strange, problems)[0])
    retrained = _estimate_retraining(opened, predictions, labels, files)
    written = {} if copies is None else {"wrong": _copy_mistakes(copies, predictions, labels, files)}
    if as_json:
        extra = {"unknown_classes": unknown_classes, "problems": [str(problem) for problem in problems]}
        print_json({**result.to_dict(), "rejection": rejection, "retrained": retrained, **written, **extra})
        return
    for problem in problems:
        warn(problem)
    if unknown_classes:
        warn(f"Not in the accuracy, because the model has not learned them: {', '.join(unknown_classes)}.")
    _print_result(result)
    _print_rejection(rejection)
    if retrained is not None:
        echo(
            f"\na new last layer, trained on {retrained['remembered']} remembered images together: "
            f"{retrained['accuracy']:.1f} % (now {retrained['now']:.1f} %)"
        )
    if copies is not None:
        if copies.count:
            echo(f"copied {copies.count} wrongly classified images into {wrong}")
            echo(f"next: check them, then itl learn {model} {wrong}")
        else:
            echo(f"no image was classified wrongly, so {wrong} was not written")


def _estimate_retraining(
    model: Model, predictions: Predictions, labels: Sequence[str], files: Sequence[Path]
) -> dict[str, Any] | None:
    """What a classifier trained on the memory would reach on some of the images; None without such a memory."""
    from dataclasses import asdict

    from itl.apps.model.input_format import read_model_images
    from itl.apps.model.joint_training_estimate import estimate_retraining, evaluated_rows

    if not len(model.learner.memory):
        return None
    rows = evaluated_rows(len(files))
    read = read_model_images(model, [files[row] for row in rows])
    kept = rows[read.indices]
    estimate = estimate_retraining(model, read.pixels, [labels[k] for k in kept], predictions.labels[kept].tolist())
    return None if estimate is None else asdict(estimate)


def _copies_outside(wrong: str, folder: str) -> SortedCopies:
    """The folder for mistakes, which must not become part of the evaluated folder."""
    from itl.apps.images import SortedCopies

    if Path(wrong).resolve().is_relative_to(Path(folder).resolve()):
        raise UserError(f"{wrong} is inside {folder}; give a folder outside of it as --wrong")
    return SortedCopies(wrong, empty=True)


def _copy_mistakes(
    copies: SortedCopies, predictions: Predictions, labels: Sequence[str], files: Sequence[Path]
) -> dict[str, Any]:
    """Copy the wrongly classified images, the most confident mistake first; where, and how many."""
    import numpy as np

    from itl.apps.images import printable_path
    from itl.apps.model.memory_images import class_folder_names

    folders = dict(zip(predictions.classes, class_folder_names(predictions.classes), strict=True))
    confidence = predictions.probabilities.max(1)
    mistakes = np.flatnonzero(predictions.labels != np.array(labels))
    for rank, k in enumerate(mistakes[np.argsort(-confidence[mistakes], kind="stable")], 1):
        taken_for = folders[str(predictions.labels[k])] + ("-or-unknown" if predictions.unknown[k] else "")
        name = f"{rank:04d}-{100 * confidence[k]:.0f}-{taken_for}-{files[k].name}"
        copies.add(files[k], folders[labels[k]], name)
    return {"folder": printable_path(copies.root), "images": copies.count}


def _predict(
    model: Model, pairs: Sequence[tuple[Path, str]], problems: list[SkippedPath]
) -> tuple[Predictions, list[str], list[Path]]:
    """Predictions, classes and files of the images that can be read."""
    import numpy as np

    from itl.apps.model.calibration import Predictions

    batches, readable = list[Predictions](), list[tuple[Path, str]]()
    for indices, predictions in predict_batches(model, [path for path, _ in pairs], problems):
        batches.append(predictions)
        readable += [pairs[index] for index in indices]
    if not batches:
        return Predictions(model.classes, np.zeros((0, len(model.classes))), np.zeros(0, bool), np.zeros(0)), [], []
    columns = zip(*((batch.probabilities, batch.unknown, batch.scores) for batch in batches), strict=True)
    predictions = Predictions(model.classes, *map(np.concatenate, columns))
    return predictions, [name for _, name in readable], [path for path, _ in readable]


def _rejection(model: Model, predictions: Predictions, labels: Sequence[str], strange: Predictions) -> dict[str, Any]:
    """What is rejected as unknown: the rule, the images concerned, and the curve of accuracy and rejection."""
    import numpy as np

    from itl.apps.model.evaluation import rejection_curve

    correct, kept = predictions.labels == np.array(labels), ~predictions.unknown
    return {
        "rule": model.calibration.rule,
        "fitted": model.calibration.threshold is not None,
        "rejected": 100 * float(predictions.unknown.mean()),
        "accuracy_of_others": 100 * float(correct[kept].mean()) if kept.any() else None,
        "curve": rejection_curve(predictions.scores, correct),
        "never_taught": {
            "images": len(strange.unknown),
            "rejected": 100 * float(strange.unknown.mean()) if len(strange.unknown) else None,
        },
    }


def _print_rejection(rejection: dict[str, Any]) -> None:
    """Print the curve, and how many images are unknown."""
    from itl.cli.display.formatting import format_percent
    from itl.cli.display.tables import open_console, plain_table

    console, table = open_console(), plain_table()
    for heading in ("rejected %", *(str(row["rejected"]) for row in rejection["curve"])):
        table.add_column(heading, justify="right")
    table.add_row("accuracy %", *(format_percent(row["accuracy"]) for row in rejection["curve"]))
    console.print("\naccuracy if the least familiar images are rejected")
    console.print(table)
    if not rejection["fitted"]:
        console.print(rejection["rule"])
        return
    others, never = rejection["accuracy_of_others"], rejection["never_taught"]
    accuracy = "" if others is None else f"; accuracy on the others {format_percent(others)} %"
    console.print(f"shown as unknown: {format_percent(rejection['rejected'])} % of the images{accuracy}")
    if never["images"]:
        share = f"{format_percent(never['rejected'])} % of {never['images']} images"
        console.print(f"shown as unknown of classes never taught: {share}")


def _print_result(result: EvaluationResult) -> None:
    from rich.text import Text

    from itl.cli.display.formatting import MIN_NAME_WIDTH, format_percent, shorten
    from itl.cli.display.tables import open_console, plain_table

    console = open_console()
    table = plain_table()
    width = max((console.width - NUMBER_COLUMNS) // 2, MIN_NAME_WIDTH)
    table.add_column("class", overflow="fold")
    for heading in ("images", "accuracy"):
        table.add_column(heading, justify="right")
    table.add_column("most often confused with", overflow="fold")
    for row in result.per_class():
        other = row["taken_for"]
        confusion = f"{shorten(other['class'], width)} ({other['images']})" if other else "–"
        table.add_row(
            Text(shorten(row["class"], width)), str(row["images"]), format_percent(row["accuracy"]), Text(confusion)
        )
    console.print(table)
    if 1 < len(result.classes) <= MAX_MATRIX_CLASSES:
        console.print("\nconfusion matrix (rows: true class, columns: predicted class)")
        console.print(_confusion_matrix(result, width))
    correct = int(result.confusion.trace())
    console.print(f"\naccuracy {format_percent(result.accuracy)} % ({correct} of {result.images} images)")
    confidence, error = format_percent(result.confidence), format_percent(result.calibration_error)
    console.print(f"mean confidence {confidence} %, expected calibration error {error}")


def _confusion_matrix(result: EvaluationResult, width: int) -> RenderableType:
    """Rows are true classes, columns are predicted classes by number; a name takes at most `width` columns."""
    from rich.text import Text

    from itl.cli.display.formatting import shorten
    from itl.cli.display.tables import plain_table

    table = plain_table()
    table.add_column("", overflow="fold")
    for k in range(len(result.classes)):
        table.add_column(str(k + 1), justify="right", no_wrap=True)
    for k, name in enumerate(result.classes):
        if result.confusion[k].any():
            table.add_row(Text(f"{k + 1} {shorten(name, width)}"), *(str(n) if n else "·" for n in result.confusion[k]))
    return table
