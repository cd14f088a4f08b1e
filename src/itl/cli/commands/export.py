"""`itl export`: a model as one file for other programs."""

from __future__ import annotations

from pathlib import Path

import click

from itl.errors import UserError, unknown

SUFFIXES = {".onnx": "onnx", ".pt2": "torch"}


@click.command()
@click.argument("model", metavar="MODEL")
@click.option("--to", "kind", metavar="KIND", help="onnx or torch. [default: by the file's ending, else onnx]")
@click.option("--out", metavar="FILE", help="[default: MODEL.onnx or MODEL.pt2]")
def export(model: str, kind: str | None, out: str | None) -> None:
    """Write a model as an ONNX file or a torch.export program: from pixels to probabilities, labels inside.

    No image of the memory is in it.
    """
    from itl.apps.model import Model
    from itl.apps.model.export import to_onnx, to_torch

    if kind is None:
        kind = SUFFIXES.get(Path(out).suffix.lower(), "onnx") if out else "onnx"
    if kind not in SUFFIXES.values():
        raise unknown("kind of export", kind, SUFFIXES.values())
    suffix = next(ending for ending, name in SUFFIXES.items() if name == kind)
    target = Path(out) if out else Path(Path(model).resolve().name + suffix)
    if target.is_dir():
        raise UserError(f"{target} is a folder; give --out a file's name")
    opened = Model.open(model, device="cpu", learned=True)
    (to_onnx if kind == "onnx" else to_torch)(opened, target)
    size, channels = opened.image["size"], opened.image["channels"]
    click.echo(
        f"wrote {target}: uint8 [batch, {channels}, {size}, {size}] to probabilities of {len(opened.classes)} classes"
    )
