"""`itl export`: write a model as one file for other programs."""

from __future__ import annotations

from pathlib import Path

import click

from itl.cli.output import echo
from itl.errors import UserError, unknown

FORMATS = {".onnx": "onnx", ".pt2": "torch"}  # by suffix


@click.command()
@click.argument("model", metavar="MODEL")
@click.option(
    "--to", "file_format", metavar="FORMAT", help="onnx or torch. [default: from the suffix of --out, else onnx]"
)
@click.option("--out", metavar="FILE", help="File to write. [default: MODEL.onnx or MODEL.pt2]")
@click.option("--script", is_flag=True, help="Also write classify_onnx.py, which classifies pictures without itl.")
def export(model: str, file_format: str | None, out: str | None, script: bool) -> None:
    """Export a model to ONNX or torch.export.

    The file maps pixels to class probabilities and contains the class names. It contains no image of the memory.
    """
    from itl.apps.model import Model
    from itl.apps.model.export import to_onnx, to_torch, write_script

    if file_format is None:
        file_format = FORMATS.get(Path(out).suffix.lower(), "onnx") if out else "onnx"
    if file_format not in FORMATS.values():
        raise unknown("export format", file_format, FORMATS.values())
    if script and file_format != "onnx":
        raise UserError("--script is for ONNX files. Use --to onnx.")
    suffix = next(suffix for suffix, name in FORMATS.items() if name == file_format)
    target = Path(out) if out else Path(Path(model).resolve().name + suffix)
    if target.is_dir():
        raise UserError(f"{target} is a folder. Give the name of a file as --out.")
    opened = Model.open(model, device="cpu", last_finished=True, memory=False)
    (to_onnx if file_format == "onnx" else to_torch)(opened, target)
    size, channels = opened.image["size"], opened.image["channels"]
    shape = f"uint8 [batch, {channels}, {size}, {size}]"
    echo(f"wrote {target}: {shape} to probabilities of {len(opened.classes)} classes")
    if script:
        echo(f"next: python {write_script(target.parent)} {target} PICTURE")
