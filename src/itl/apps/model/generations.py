"""The generations of a model folder: which are finished, and which are intact."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from itl.apps.model.history import readable_entries
from itl.apps.model.metadata import METADATA_KEY
from itl.checkpoint import store
from itl.errors import UserError
from itl.learner import max_tensor_bytes


def size_limit(state: dict[str, Any]) -> float:
    """`max_tensor_bytes` of a generation; infinite if its network cannot be built here, which does not damage it."""
    try:
        return max_tensor_bytes(state)
    except UserError:
        return math.inf


def newest_finished(root: Path, current: str) -> str:
    """Return the newest generation, up to the current one, that is not in the middle of a lesson.

    Raises:
        UserError: If the first lesson is not finished yet.
    """
    if pending_lesson(root / current) is None:
        return current
    names = store.generations(root)
    finished = [name for name in names[: names.index(current) if current in names else 0] if is_finished(root / name)]
    if not finished:
        raise UserError(f"{root} has not finished its first lesson; repeat the same itl learn command to finish it")
    return finished[-1]


def last_finished(root: Path, current: str, count: int) -> list[str]:
    """Return the last `count` finished generations up to the current one; later ones are drafts or were undone."""
    names = store.generations(root)
    finished = [name for name in names[: names.index(current) + 1] if is_finished(root / name)]
    return finished[-count:] if count else []


def find_damage(root: Path) -> UserError | None:
    """Return what is wrong with the files of the current generation, or None."""
    try:
        store.read(root, size_limit)
    except UserError as error:
        return error
    return None


def earlier_finished(root: Path) -> Iterator[str]:
    """Yield the finished generations before the current one, newest first; all of them if none is current."""
    names = store.generations(root)
    current = store.current_unchecked(root)
    earlier = names if current is None else names[: names.index(current)] if current in names else []
    for name in reversed(earlier):
        if is_finished(root / name):
            yield name


def newest_intact(root: Path) -> str | None:
    """Return the newest generation, up to the current one, whose weights and state are intact, or None.

    It is the current one if only `SHA256SUMS` or `CURRENT` is damaged.

    Raises:
        UserError: If a newer generation cannot be read now, or was written by another version of itl.
    """
    current = store.current_unchecked(root)
    for name in reversed(store.generations(root)):
        if current is not None and store.generation_number(name) > store.generation_number(current):
            continue  # it was never the current one, or was undone
        if store.is_intact(root, name, size_limit):
            return name
    return None


def with_undo_hint(root: Path, error: UserError) -> UserError:
    """Mention `itl undo` in an error, if the current generation is damaged and an older one is intact."""
    if isinstance(error, (store.UnsupportedVersion, store.TemporarilyUnreadable)) or find_damage(root) is None:
        return error
    with suppress(UserError):
        if newest_intact(root) is not None:
            return UserError(f"{error}; itl undo {root} restores the last intact state")
    return error


def pending_lesson(generation: Path) -> dict[str, Any] | None:
    """Return the metadata of a generation's unfinished lesson, or None."""
    pending = (_metadata(generation) or {}).get("pending")
    return pending if isinstance(pending, dict) else None


def saved_history(root: Path) -> list[dict[str, Any]]:
    """Return the history in the current generation, without opening the model; empty if there is no model."""
    current = store.current_unchecked(root)
    return [] if current is None else history_of(root / current)


def history_of(generation: Path) -> list[dict[str, Any]]:
    """Return the history in a generation, without validation of the rest."""
    return readable_entries((_metadata(generation) or {}).get("history"))


def is_finished(generation: Path) -> bool:
    """Return whether a generation belongs to a model and is not in the middle of a lesson."""
    metadata = _metadata(generation)
    return metadata is not None and metadata.get("pending") is None


def _metadata(generation: Path) -> dict[str, Any] | None:
    """Return a generation's metadata without validation, or None."""
    notes = store.read_state_unchecked(generation).get("notes")
    metadata = notes.get(METADATA_KEY) if isinstance(notes, dict) else None
    return metadata if isinstance(metadata, dict) else None
