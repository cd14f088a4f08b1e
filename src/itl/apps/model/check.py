"""Verify all files of a model folder, and repair what can be repaired without losing anything that is intact."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from itl.apps.model.folder import Model
from itl.apps.model.generations import find_damage, newest_intact, size_limit
from itl.apps.model.memory_images import MEMORY_FOLDER
from itl.checkpoint import store
from itl.checkpoint.checksums import readable_entries
from itl.checkpoint.lock import locked
from itl.errors import UserError


@dataclass
class CheckResult:
    """The result of `check`.

    Attributes:
        states: Number of states that were checked.
        problems: What is damaged, one line each.
        repairs: What was repaired, one line each.
    """

    states: int = 0
    problems: list[str] = field(default_factory=list)
    repairs: list[str] = field(default_factory=list)


def check(path: Path, *, repair: bool = True) -> CheckResult:
    """Verify a model folder and repair it.

    A damaged image is restored from an intact copy in another state, or dropped from the memory. A damaged `CURRENT`
    or `SHA256SUMS` is written again if the weights are intact. If the weights of the current state are damaged, only
    `itl undo` can help; the result says so.

    Args:
        path: The model folder.
        repair: Repair what is damaged; otherwise nothing is changed.

    Raises:
        UserError: If the folder is not a model folder, cannot be read or written now, or no state is intact.
    """
    with locked(path) if repair else nullcontext():
        return _check(path, repair)


def _check(path: Path, repair: bool) -> CheckResult:
    result = CheckResult()
    damage = find_damage(path)
    if damage is not None:
        result.problems.append(str(damage))
        _restore_current(path, damage, repair, result)
    current = store.current_unchecked(path)
    for name in store.generations(path):
        result.states += 1
        if not store.is_intact(path, name, size_limit):
            result.problems.append(f"{name} is damaged; itl undo cannot go back to it")
            continue
        damaged = damaged_images(path, name)
        result.problems += [f"{name}/{file} is missing or damaged" for file in damaged]
        if damaged and name == current and repair:
            result.repairs.append(_repair_memory(path, len(damaged)))
    return result


def _restore_current(path: Path, damage: UserError, repair: bool, result: CheckResult) -> None:
    """Write `CURRENT` and `SHA256SUMS` again, if that is all that is damaged; otherwise refer to `itl undo`."""
    if isinstance(damage, (store.TemporarilyUnreadable, store.UnsupportedVersion)):
        raise damage
    target = newest_intact(path)
    if target is None:
        raise damage
    if target != (store.current_unchecked(path) or store.generations(path)[-1]):
        raise UserError(f"{damage}; itl undo {path} restores the last intact state")
    if repair:
        try:
            store.restore_current(path, target)
        except OSError as error:
            raise UserError(f"cannot write the model folder {path}: {store.error_summary(error)}") from None
        result.repairs.append(f"wrote {store.CURRENT} and {store.CHECKSUMS} again; the weights are intact")


def _repair_memory(path: Path, damaged: int) -> str:
    """Save the model without damaged images, and say what was done."""
    model = Model.open(path, device="cpu")
    dropped = len(model.damaged_images)
    model.add_history_entry("repair", images=dropped)
    model.save()
    return f"restored {damaged - dropped} and dropped {dropped} images of the memory; the weights are intact"


def damaged_images(root: Path, name: str) -> list[str]:
    """Return the damaged image files of a generation, whether or not there is an intact copy elsewhere.

    Raises:
        UserError: If a file cannot be read now.
    """
    damaged = []
    for file, entry in readable_entries(root / name).items():
        if file.startswith(f"{MEMORY_FOLDER}/"):
            try:
                store.verify_file(root, root / name / file, entry)
            except UserError:
                damaged.append(file)
            except OSError as error:
                if store.is_transient(error):
                    raise store.read_error(root, error) from None
                damaged.append(file)
    return damaged
