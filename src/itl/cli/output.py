"""Print text, JSON and warnings, and write text files."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from itl.atomic import write_text_atomic
from itl.errors import UserError

if TYPE_CHECKING:
    from itl.apps.model import Model

BIDI_CONTROLS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def printable(text: str) -> str:
    """Escape the characters that could control a terminal, or reorder the text on it, except tab and newline."""
    if text.isprintable():
        return text
    return "".join(_escaped(c) if c not in "\n\t" else c for c in text)


def _escaped(char: str) -> str:
    controls = unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") or char in BIDI_CONTROLS
    return char.encode("unicode_escape", "surrogatepass").decode() if controls else char


def echo(text: str = "", *, newline: bool = True) -> None:
    """Print text, which may come from a file or folder of somebody else, on standard output."""
    click.echo(printable(text), nl=newline)


def print_json(value: Any) -> None:
    """Print `value` as one JSON document on standard output."""
    click.echo(json.dumps(value, indent=1))


def warn(message: object) -> None:
    """Print one line on standard error, prefixed with the program's name."""
    click.echo(f"itl: {printable(str(message))}", err=True)


def warn_damaged_images(model: Model) -> None:
    """Report images that the memory has lost, if any."""
    if damaged := model.damaged_images:
        more = f" and {len(damaged) - 1} more" if len(damaged) > 1 else ""
        warn(f"{model.path}: dropped damaged images from the memory: {damaged[0]}{more}.")


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
