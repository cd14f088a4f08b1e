"""Print JSON and warnings, and write text files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from itl.atomic import write_text_atomic
from itl.errors import UserError


def print_json(value: Any) -> None:
    """Print `value` as one JSON document on standard output."""
    click.echo(json.dumps(value, indent=1))


def warn(message: object) -> None:
    """Print one line on standard error, prefixed with the program's name."""
    click.echo(f"itl: {message}", err=True)


def write_text(path: str, text: str) -> None:
    """Write the file named by `--out`; raise a `UserError` if that is impossible."""
    out = Path(path)
    try:
        if out.is_char_device() or out.is_fifo():  # such as /dev/stdout: nothing to replace
            out.write_text(text, encoding="utf-8")
        else:
            write_text_atomic(out, text)
    except OSError as error:
        raise UserError(f"Cannot write {path}: {error.strerror or error}. Choose another --out.") from None
