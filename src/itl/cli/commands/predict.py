"""`itl predict`: classify images with a model."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from itl.cli import options
from itl.cli.output import echo, print_json, printable, warn
from itl.errors import UserError

if TYPE_CHECKING:
    from itl.apps.images import SkippedPath, SortedCopies
    from itl.apps.model import Model
    from itl.apps.model.calibration import Predictions

BATCH_SIZE = 512  # images in memory at a time


@click.command()
@click.argument("model", metavar="MODEL")
@click.argument("paths", metavar="[IMAGE|FOLDER]…", nargs=-1)
@click.option(
    "--top", type=click.IntRange(1), default=1, show_default=True, metavar="K", help="Print the K most likely classes."
)
@options.json_option("the predictions")
@click.option("--csv", "as_csv", is_flag=True, help="Print the predictions as comma-separated values with a header.")
@click.option(
    "--sort-into", metavar="DIR", help="Copy each image to DIR/CLASS, or to DIR/unknown. Never overwrites a file."
)
@options.device_option
def predict(
    model: str, paths: tuple[str, ...], top: int, as_json: bool, as_csv: bool, sort_into: str | None, device: str
) -> None:
    """Classify images.

    An image that belongs to none of the classes is shown as "unknown", followed by the most likely class. The
    threshold is chosen so that about 5 % of the images of known classes are shown as unknown; `itl info` shows it.

    Takes image files and folders of images. Without paths, or with `-`, paths are read from standard input, one per
    line. Images that cannot be read are reported on standard error; the others are classified anyway.
    """
    from itl.apps.images import SortedCopies, printable_path
    from itl.apps.model import Model

    options.exclusive(json=as_json, csv=as_csv)
    copies = None if sort_into is None else SortedCopies(sort_into)
    opened = Model.open(model, device=device, last_finished=True, memory=False)
    files, problems = find_files(paths)
    top = min(top, len(opened.classes))
    rows = predict_files(opened, files, problems, top, copies)
    if as_json:
        _print_predictions_json(rows, problems)
    else:
        (_print_csv if as_csv else _print_lines)(rows, top)
        for problem in problems:
            warn(problem)
        if copies is not None and not as_csv:
            echo(f"copied {copies.count} images into {printable_path(copies.root)}")
    if not rows:
        raise UserError("None of these images could be read.")


def find_files(paths: Sequence[str]) -> tuple[list[Path], list[SkippedPath]]:
    """The image files among `paths` and in the folders among them, and the problems met."""
    from itl.apps.images import find_images

    files: list[Path] = []
    problems: list[SkippedPath] = []
    for path in _expand_stdin(paths):
        if path.is_dir():
            found, unreadable = find_images(path)
            files += found
            problems += unreadable
        else:
            files.append(path)  # reading it later will report a missing file
    if not files and not problems:
        raise UserError("There are no images. Give image files or folders, or their paths on standard input.")
    return files, problems


def _expand_stdin(paths: Sequence[str]) -> Iterator[Path]:
    """The paths, with `-` replaced by the lines of standard input."""
    for path in paths or ["-"]:
        if path != "-":
            yield Path(path)
        elif sys.stdin is None or sys.stdin.isatty():
            raise UserError("No image is given. Name image files or folders, or pipe their paths to standard input.")
        else:
            if isinstance(sys.stdin, io.TextIOWrapper):
                sys.stdin.reconfigure(errors="surrogateescape")  # a path is bytes, not text
            yield from (Path(line) for line in (line.rstrip("\r\n") for line in sys.stdin) if line)


def predict_batches(
    model: Model, files: Sequence[Path], problems: list[SkippedPath]
) -> Iterator[tuple[list[int], Predictions]]:
    """Predictions for the image files, batch by batch.

    Args:
        model: The model.
        files: Paths of image files.
        problems: Files that cannot be read are appended to this list.

    Yields:
        Indices into `files` and predictions for the images that can be read.
    """
    from itl.apps.model.input_format import read_model_images

    for start in range(0, len(files), BATCH_SIZE):
        pixels, readable, unreadable = read_model_images(model, files[start : start + BATCH_SIZE])
        problems += unreadable
        if readable:
            yield [start + index for index in readable], model.classify(pixels)


def predict_files(
    model: Model, files: Sequence[Path], problems: list[SkippedPath], top: int, copies: SortedCopies | None = None
) -> list[dict[str, Any]]:
    """For each readable image its path and its `top` most likely classes; the others are appended to `problems`.

    If `copies` is given, each image is copied into the folder of its class, or into `unknown`.
    """
    from itl.apps.images import printable_path
    from itl.apps.model.memory_images import class_folder_names

    *class_folders, unknown_folder = class_folder_names([*model.classes, "unknown"])
    rows = []
    for indices, predictions in predict_batches(model, files, problems):
        order = (-predictions.probabilities).argsort(1, kind="stable")[:, :top]
        for index, best, row, unknown in zip(
            indices, order, predictions.probabilities, predictions.unknown, strict=True
        ):
            likely = [{"class": model.classes[k], "confidence": float(row[k])} for k in best]
            rows.append({"path": printable_path(files[index]), **likely[0], "unknown": bool(unknown), "top": likely})
            if copies is not None:
                folder = unknown_folder if unknown else class_folders[best[0]]
                rows[-1]["copy"] = printable_path(copies.add(files[index], folder, files[index].name))
    return rows


def _print_predictions_json(rows: list[dict[str, Any]], problems: Sequence[SkippedPath]) -> None:
    from itl.apps.images import printable_path

    unreadable = [{"path": printable_path(problem.path), "why": problem.reason} for problem in problems]
    print_json({"predictions": rows, "problems": unreadable})


def _print_csv(rows: list[dict[str, Any]], top: int) -> None:
    from itl.apps.csv_cells import plain_cell

    writer = csv.writer(sys.stdout, lineterminator="\n")
    suffixes = [""] if top == 1 else [f"_{k}" for k in range(1, top + 1)]
    writer.writerow(["path", *(name + suffix for suffix in suffixes for name in ("class", "confidence")), "unknown"])
    for row in rows:
        cells = [cell for likely in row["top"] for cell in (likely["class"], f"{likely['confidence']:.6f}")]
        writer.writerow([printable(plain_cell(cell)) for cell in (row["path"], *cells, str(int(row["unknown"])))])


def _print_lines(rows: list[dict[str, Any]], top: int) -> None:
    """Print one aligned line per image."""
    path_width = max((len(row["path"]) for row in rows), default=0)
    widths = [max((len(row["top"][k]["class"]) for row in rows if k < len(row["top"])), default=0) for k in range(top)]
    any_unknown = any(row["unknown"] for row in rows)
    for row in rows:
        cells = [
            f"{likely['class']:<{width}}  {100 * likely['confidence']:5.1f} %"
            for likely, width in zip(row["top"], widths, strict=False)
        ]
        unknown = ["unknown, most likely"] if row["unknown"] else [" " * 20] if any_unknown else []
        echo("  ".join([f"{row['path']:<{path_width}}", *unknown, *cells]))
