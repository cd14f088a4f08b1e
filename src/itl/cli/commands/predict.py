"""`itl predict`: what is in these images?"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from itl.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from itl.apps.images import SkippedPath
    from itl.apps.model import Model

AT_ONCE = 512  # images in memory


@click.command()
@click.argument("model", metavar="MODEL")
@click.argument("paths", metavar="IMAGE|FOLDER…", nargs=-1)
@click.option(
    "--top", type=click.IntRange(1), default=1, show_default=True, metavar="K", help="The K likeliest classes."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
@click.option("--csv", "as_csv", is_flag=True, help="Print comma-separated values with a heading.")
@click.option("--device", metavar="NAME", default="auto", show_default=True, help="auto, cpu or cuda.")
def predict(model: str, paths: tuple[str, ...], top: int, as_json: bool, as_csv: bool, device: str) -> None:
    """Say what is in images, in whole folders of them, or in those whose paths come line by line on standard input.

    Paths from standard input are read where `-`, or nothing, is given. Images that cannot be read are listed on
    standard error; the others are predicted all the same.
    """
    from itl.apps.model import Model

    if as_json and as_csv:
        raise UserError("give --json or --csv, not both")
    opened = Model.open(model, device=device, learned=True)
    files, problems = find(paths)
    top = min(top, len(opened.classes))
    rows = predictions(opened, files, problems, top)
    if as_json:
        _json(rows, problems)
    else:
        (_csv if as_csv else _lines)(rows, top)
        for problem in problems:
            click.echo(f"itl: {problem}", err=True)
    if not rows:
        raise UserError("none of these images could be read")


def find(paths: Sequence[str]) -> tuple[list[Path], list[SkippedPath]]:
    """The image files that are meant, folders looked through."""
    from itl.apps.images import find_images

    files: list[Path] = []
    problems: list[SkippedPath] = []
    for path in _given(paths):
        if path.is_dir():
            found, wrong = find_images(path)
            files += found
            problems += wrong
        else:
            files.append(path)  # one that is not there is found out when it is read
    if not files and not problems:
        raise UserError("there are no images; give image files or folders, or their paths on standard input")
    return files, problems


def _given(paths: Sequence[str]) -> Iterator[Path]:
    for path in paths or ["-"]:
        if path != "-":
            yield Path(path)
        elif sys.stdin is None or sys.stdin.isatty():
            raise UserError("no image is given; name image files or folders, or pipe their paths in")
        else:
            if isinstance(sys.stdin, io.TextIOWrapper):
                sys.stdin.reconfigure(errors="surrogateescape")  # a path is bytes, not text
            yield from (Path(line) for line in (line.rstrip("\r\n") for line in sys.stdin) if line)


def predictions(model: Model, files: Sequence[Path], problems: list[SkippedPath], top: int) -> list[dict[str, Any]]:
    """A row for each image that can be read: its path and its likeliest classes. Others are added to `problems`."""
    import torch

    from itl.apps.images import printable_path, read_images

    out = []
    for first in range(0, len(files), AT_ONCE):
        part = files[first : first + AT_ONCE]
        pixels, kept, wrong = read_images(part, model.image["size"])
        problems += wrong
        if not len(kept):
            continue
        probabilities = model.predict_proba(in_channels(torch.from_numpy(pixels), model))
        order = (-probabilities).argsort(1, kind="stable")[:, :top]
        for index, best, row in zip(kept.tolist(), order, probabilities, strict=True):
            likely = [{"class": model.classes[k], "confidence": float(row[k])} for k in best]
            out.append({"path": printable_path(part[index]), **likely[0], "top": likely})
    return out


def in_channels(pixels: Tensor, model: Model) -> Tensor:
    """RGB pixels `[n, 3, h, w]` as the model's channels: grey by the usual weights."""
    if model.image["channels"] == 3:
        return pixels
    if model.image["channels"] != 1:
        raise UserError(f"{model.path} takes images of {model.image['channels']} channels, which files do not have")
    red, green, blue = (pixels[:, k].int() for k in range(3))
    return ((red * 19595 + green * 38470 + blue * 7471 + (1 << 15)) >> 16).to(pixels.dtype).unsqueeze(1)


def _json(rows: list[dict[str, Any]], problems: Sequence[SkippedPath]) -> None:
    from itl.apps.images import printable_path

    wrong = [{"path": printable_path(problem.path), "why": problem.reason} for problem in problems]
    click.echo(json.dumps({"predictions": rows, "problems": wrong}, indent=1))


def _csv(rows: list[dict[str, Any]], top: int) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    numbers = [""] if top == 1 else [f"_{k}" for k in range(1, top + 1)]
    writer.writerow(["path", *(word + number for number in numbers for word in ("class", "confidence"))])
    for row in rows:
        cells = [cell for one in row["top"] for cell in (one["class"], f"{one['confidence']:.6f}")]
        writer.writerow([row["path"], *cells])


def _lines(rows: list[dict[str, Any]], top: int) -> None:
    widths = [max((len(row["path"]) for row in rows), default=0)]
    widths += [max((len(row["top"][k]["class"]) for row in rows if k < len(row["top"])), default=0) for k in range(top)]
    for row in rows:
        cells = [
            f"{one['class']:<{width}}  {100 * one['confidence']:5.1f} %"
            for one, width in zip(row["top"], widths[1:], strict=False)
        ]
        click.echo("  ".join([f"{row['path']:<{widths[0]}}", *cells]))
