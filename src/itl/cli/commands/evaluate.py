"""`itl eval`: evaluate a model on a folder of labeled images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from itl.cli import options
from itl.cli.commands.predict import predict_batches
from itl.cli.output import print_json, warn
from itl.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    from rich.console import RenderableType

    from itl.apps.images import SkippedPath
    from itl.apps.model import Model
    from itl.apps.model.evaluation import EvaluationResult

MAX_MATRIX_CLASSES = 12  # the confusion matrix of more classes is not printed


@click.command("eval")
@click.argument("model", metavar="MODEL")
@click.argument("folder", metavar="FOLDER")
@click.option("--held-out", is_flag=True, help="Use only the images that `itl learn` would hold out for testing.")
@options.json_option()
@options.device_option
def evaluate(model: str, folder: str, held_out: bool, as_json: bool, device: str) -> None:
    """Evaluate a model on a folder of labeled images.

    Each subfolder of FOLDER contains the images of one class; if FOLDER has a test/, that is used. Shows accuracy per
    class, the most frequent confusions, and calibration: the difference between confidence and accuracy.
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
    probabilities, labels = _predict(opened, pairs, problems)
    if not labels:
        raise UserError(f"No image in {folder} could be read. The first problem is {problems[0]}.")
    result = evaluate_predictions(opened.classes, probabilities, labels)
    if as_json:
        extra = {"unknown_classes": unknown_classes, "problems": [str(problem) for problem in problems]}
        print_json({**result.to_dict(), **extra})
        return
    for problem in problems:
        warn(problem)
    if unknown_classes:
        warn(f"Skipped classes that the model has not learned: {', '.join(unknown_classes)}.")
    _print_result(result)


def _predict(
    model: Model, pairs: Sequence[tuple[Path, str]], problems: list[SkippedPath]
) -> tuple[np.ndarray, list[str]]:
    """Probabilities `[n, classes]` and true classes `[n]` of the images that can be read."""
    import numpy as np

    batches, labels = [np.zeros((0, len(model.classes)))], list[str]()
    for indices, probabilities in predict_batches(model, [path for path, _ in pairs], problems):
        batches.append(probabilities)
        labels += [pairs[index][1] for index in indices]
    return np.concatenate(batches), labels


def _print_result(result: EvaluationResult) -> None:
    from rich.text import Text

    from itl.cli.display.formatting import format_percent
    from itl.cli.display.tables import open_console, plain_table

    console = open_console()
    table = plain_table()
    table.add_column("class", overflow="fold")
    for heading in ("images", "accuracy"):
        table.add_column(heading, justify="right")
    table.add_column("most often confused with", overflow="fold")
    for row in result.per_class():
        other = row["taken_for"]
        confusion = f"{other['class']} ({other['images']})" if other else "–"
        table.add_row(Text(row["class"]), str(row["images"]), format_percent(row["accuracy"]), Text(confusion))
    console.print(table)
    if 1 < len(result.classes) <= MAX_MATRIX_CLASSES:
        console.print("\nconfusion matrix (rows: true class, columns: predicted class)")
        console.print(_confusion_matrix(result))
    correct = int(result.confusion.trace())
    console.print(f"\naccuracy {format_percent(result.accuracy)} % ({correct} of {result.images} images)")
    confidence, error = format_percent(result.confidence), format_percent(result.calibration_error)
    console.print(f"mean confidence {confidence} %, expected calibration error {error}")


def _confusion_matrix(result: EvaluationResult) -> RenderableType:
    """Rows are true classes, columns are predicted classes by number: names would not fit 80 columns."""
    from rich.text import Text

    from itl.cli.display.formatting import shorten
    from itl.cli.display.tables import plain_table

    table = plain_table()
    table.add_column("", overflow="fold")
    for k in range(len(result.classes)):
        table.add_column(str(k + 1), justify="right", no_wrap=True)
    for k, name in enumerate(result.classes):
        if result.confusion[k].any():
            table.add_row(Text(f"{k + 1} {shorten(name)}"), *(str(n) if n else "·" for n in result.confusion[k]))
    return table
