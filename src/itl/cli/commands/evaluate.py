"""`itl eval`: how good a model is on a folder of labelled images."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from itl.cli.commands.predict import AT_ONCE, in_channels
from itl.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    from rich.console import RenderableType

    from itl.apps.images import SkippedPath
    from itl.apps.model import Model
    from itl.apps.model.evaluation import EvaluationResult

MATRIX = 12  # classes of which the whole confusion matrix is shown


@click.command("eval")
@click.argument("model", metavar="MODEL")
@click.argument("folder", metavar="FOLDER")
@click.option("--held-out", is_flag=True, help="Only the images that `itl learn` holds out of such a folder.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
@click.option("--device", metavar="NAME", default="auto", show_default=True, help="auto, cpu or cuda.")
def evaluate(model: str, folder: str, held_out: bool, as_json: bool, device: str) -> None:
    """Judge a model on a folder with a sub-folder of images for each class (of its test/, where it has one).

    By class, which class is taken for which, and calibration: how far confidence and accuracy are apart.
    """
    from itl.apps.images import scan_folder
    from itl.apps.model import Model
    from itl.apps.model.evaluation import evaluate_predictions
    from itl.apps.teaching.held_out_evaluation import recorded_train_only_hashes, relative_folder

    opened = Model.open(model, device=device, learned=True)
    found = scan_folder(folder)
    if held_out:
        found = found.with_held_out(recorded_train_only_hashes(opened, relative_folder(opened, found.folder)))
    classes = found.test if held_out or found.has_test else found.train
    strange = sorted(set(classes) - set(opened.classes))
    pairs = [(path, name) for name, files in classes.items() if name not in strange for path in files]
    if not pairs:
        raise UserError(f"{folder} has no images of the classes that {model} knows: {', '.join(opened.classes)}")
    problems = list(found.skipped)
    probabilities, labels = _predicted(opened, pairs, problems)
    if not labels:
        raise UserError(f"no image in {folder} could be read; the first: {problems[0]}")
    verdict = evaluate_predictions(opened.classes, probabilities, labels)
    if as_json:
        wrong = [str(problem) for problem in problems]
        click.echo(json.dumps({**verdict.to_dict(), "unknown_classes": strange, "problems": wrong}, indent=1))
        return
    for problem in problems:
        click.echo(f"itl: {problem}", err=True)
    if strange:
        click.echo(f"itl: left out, as the model has not learned them: {', '.join(strange)}", err=True)
    _show(verdict)


def _predicted(
    model: Model, pairs: Sequence[tuple[Path, str]], problems: list[SkippedPath]
) -> tuple[np.ndarray, list[str]]:
    """Probabilities `[n, classes]` and right classes of the images that can be read."""
    import numpy as np
    import torch

    from itl.apps.images import read_images

    out, labels = [np.zeros((0, len(model.classes)))], list[str]()
    for first in range(0, len(pairs), AT_ONCE):
        part = pairs[first : first + AT_ONCE]
        pixels, kept, wrong = read_images([path for path, _ in part], model.image["size"])
        problems += wrong
        if len(kept):
            out.append(model.predict_proba(in_channels(torch.from_numpy(pixels), model)))
            labels += [part[index][1] for index in kept.tolist()]
    return np.concatenate(out), labels


def _show(verdict: EvaluationResult) -> None:
    from rich.console import Console
    from rich.text import Text

    from itl.cli.display.run_tables import percent, plain_table

    console = Console(highlight=False)
    table = plain_table()
    table.add_column("class", overflow="fold")
    for heading in ("images", "accuracy"):
        table.add_column(heading, justify="right")
    table.add_column("mostly taken for", overflow="fold")
    for row in verdict.per_class():
        other = row["taken_for"]
        taken = f"{other['class']} ({other['images']})" if other else "–"
        table.add_row(Text(row["class"]), str(row["images"]), percent(row["accuracy"]), Text(taken))
    console.print(table)
    if 1 < len(verdict.classes) <= MATRIX:
        console.print("\nimages of the class in the row that were taken for the class in the column")
        console.print(_matrix(verdict))
    right = int(verdict.confusion.trace())
    console.print(f"\naccuracy {percent(verdict.accuracy)} % ({right} of {verdict.images} images)")
    sure, error = percent(verdict.confidence), percent(verdict.calibration_error)
    console.print(f"mean confidence {sure} %, expected calibration error {error}")


def _matrix(verdict: EvaluationResult) -> RenderableType:
    from rich.text import Text

    from itl.cli.display.run_tables import plain_table

    table = plain_table()
    table.add_column("")
    for name in verdict.classes:
        table.add_column(Text(name[:8]), justify="right")
    for k, name in enumerate(verdict.classes):
        if verdict.confusion[k].any():
            table.add_row(Text(name), *(str(n) if n else "·" for n in verdict.confusion[k]))
    return table
