"""Entries of a model's history: what changed and when. They are validated, because a model folder may be untrusted."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from itl import __version__
from itl.errors import UserError

UNREADABLE = "a change that cannot be shown"


class _Entry(BaseModel):
    """What all entries have; further keys are allowed."""

    model_config = ConfigDict(strict=True)

    what: str
    date: str
    fingerprint: str | None = None


class _Renaming(_Entry):
    old: str
    new: str


class _Resizing(_Entry):
    before: int
    size: int


class _Repair(_Entry):
    images: int


class _Forgetting(_Entry):
    images: int
    classes: int


class _Accuracy(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    all: float | None = None
    task: float | None = None
    classes: dict[str, float] = {}


class _Lesson(_Entry):
    folder: str
    name: str
    classes: dict[str, int] = {}
    accuracy: _Accuracy = _Accuracy()
    beyond: dict[str, list[str]] = {}


_KINDS: dict[str, type[_Entry]] = {
    "rename": _Renaming,
    "merge": _Renaming,
    "resize": _Resizing,
    "repair": _Repair,
    "forget": _Forgetting,
}


def new_entry(what: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """An entry with the present date.

    Raises:
        UserError: The facts lack what an entry of this kind needs.
    """
    entry = {"what": what, "date": time.strftime("%Y-%m-%d %H:%M:%S"), "itl": __version__, **facts}
    try:
        check_entry(entry)
    except ValueError as error:
        raise UserError(f"{error}; pass a value of the right type, or use another key") from None
    return entry


def is_lesson(entry: dict[str, Any]) -> bool:
    """Whether `itl learn` wrote an entry. `Model.finish` accepts any keys."""
    return entry.get("what") == "learn" and "folder" in entry and "name" in entry


def check_entry(entry: dict[str, Any]) -> None:
    """Check the keys that an entry of its kind needs.

    Raises:
        ValueError: A key is missing, or its value has another type.
    """
    kind = entry.get("what")
    expected = _Lesson if is_lesson(entry) else _KINDS.get(kind, _Entry) if isinstance(kind, str) else _Entry
    try:
        expected.model_validate(entry)
    except ValidationError as error:
        raise ValueError(f"an entry of the history is not valid: {first_problem(error)}") from None


def first_problem(error: ValidationError) -> str:
    """The first key that is not valid, and what is wrong with it."""
    first = error.errors()[0]
    return f"{first['loc'][0]}: {first['msg']}"


def readable_entries(history: Any) -> list[dict[str, Any]]:
    """The entries of an unchecked history; those that are not valid are replaced."""
    out: list[dict[str, Any]] = []
    for entry in history if isinstance(history, list) else []:
        try:
            check_entry(entry)
            out.append(entry)
        except (ValueError, AttributeError):  # AttributeError: the entry is not a dict
            out.append({"what": UNREADABLE, "date": ""})
    return out
