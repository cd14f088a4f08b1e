"""Which folders are generations of a model: those that its state lists. Other folders in it belong to the user.

The state of a generation lists the older ones and the name of the next one. So a generation that was written but never
became the current one, because the process was killed, is known too.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import stat
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from itl.atomic import remove_leftovers
from itl.checkpoint.checksums import CHECKSUMS, STATE, TENSORS, read_checksums, read_regular_text, verify_file
from itl.errors import UserError
from itl.strict_json import parse_json

CURRENT = "CURRENT"
GENERATION_NAME = re.compile(r"generation-([0-9]{6,12})")
LIST_KEY = "generations"  # in state.json
_DRAFT_NAME = re.compile(r"\.draft-[0-9]{6,12}(-[0-9a-f]{16})?")
_MAX_NUMBER = 10**12 - 1
_KNOWN_ENTRIES = {TENSORS, STATE, CHECKSUMS, "memory"}


def generations(folder: str | os.PathLike[str]) -> list[str]:
    """Names of a model's generations, oldest first.

    If the current state does not list them, because it is damaged or was written by an earlier version, these are the
    folders that contain nothing but the files of a generation.
    """
    root = Path(folder)
    current = current_unchecked(root)
    listed = None if current is None else _listed(root, current)
    if current is None or listed is None:
        names = {path.name for path in root.glob("generation-*") if GENERATION_NAME.fullmatch(path.name)}
        return sorted((name for name in names if _has_known_entries(root / name)), key=generation_number)
    names = {*listed[0], current}
    while listed is not None and listed[1] not in names and _has_known_entries(root / listed[1]):
        names.add(listed[1])
        listed = _listed(root, listed[1])
    return sorted((name for name in names if _is_folder(root / name)), key=generation_number)


def new_draft(root: Path, older: Sequence[str]) -> tuple[Path, str, dict[str, Any]]:
    """Create the folder of a new generation.

    Args:
        root: The model folder.
        older: Names of the existing generations.

    Returns:
        The folder, the name that the complete generation will have, and the value of `LIST_KEY` in its state.

    Raises:
        UserError: There is no number left for its name.
        OSError: The folder cannot be created.
    """
    number = _free_number(root, max(map(generation_number, older), default=0))
    following = _free_number(root, number)
    draft = root / f".draft-{number:06d}-{secrets.token_hex(8)}"
    draft.mkdir()
    return draft, _name(number), {"older": list(older), "next": _name(following)}


def current_unchecked(folder: str | os.PathLike[str]) -> str | None:
    """Name of the generation in `CURRENT`, intact or not; None if there is none."""
    try:
        name = read_regular_text(Path(folder) / CURRENT).partition("\n")[0].strip()
    except (OSError, ValueError, UserError):
        return None
    return name if GENERATION_NAME.fullmatch(name) else None


def generation_number(name: str) -> int:
    """Number of a generation from its name; 0 for a name of another form."""
    found = GENERATION_NAME.fullmatch(name)
    return int(found[1]) if found else 0


def remove_generations(root: Path, names: Collection[str]) -> None:
    """Remove some generations, newest first, and what killed processes have left. Each disappears in one step."""
    for name in sorted(names, key=generation_number, reverse=True):
        discarded = root / f".draft-{generation_number(name):06d}-{secrets.token_hex(8)}"
        with suppress(OSError):
            (root / name).rename(discarded)
    for path in root.glob(".draft-*"):
        if _DRAFT_NAME.fullmatch(path.name) and (_has_known_entries(path) or not any(_entries(path))):
            shutil.rmtree(path, ignore_errors=True)
    remove_leftovers(root, [CURRENT])


def _listed(root: Path, name: str) -> tuple[list[str], str] | None:
    """The older generations and the next one according to a state; None if it lists none or is damaged."""
    generation = root / name
    try:
        verify_file(root, generation / STATE, read_checksums(generation)[STATE])
        listed = parse_json(read_regular_text(generation / STATE))[LIST_KEY]
        names = [*listed["older"], listed["next"]]
        if not all(GENERATION_NAME.fullmatch(other) for other in names):
            return None
    except (OSError, UserError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    return names[:-1], names[-1]


def _free_number(root: Path, after: int) -> int:
    number = after + 1
    while os.path.lexists(root / _name(number)):
        number += 1
    if number > _MAX_NUMBER:
        raise UserError(f"{root} has no number left for a new state; export the model, or restore it from a copy")
    return number


def _name(number: int) -> str:
    return f"generation-{number:06d}"


def _is_folder(path: Path) -> bool:
    """Whether a path is a folder and not a link to one."""
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except OSError:
        return False


def _has_known_entries(path: Path) -> bool:
    """Whether a folder contains files of a generation and nothing else."""
    entries = _entries(path)
    return bool(entries) and _KNOWN_ENTRIES.issuperset(entries)


def _entries(path: Path) -> list[str]:
    try:
        return os.listdir(path) if _is_folder(path) else []
    except OSError:
        return []
