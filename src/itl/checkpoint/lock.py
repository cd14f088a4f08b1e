"""The lock of a model folder: one process at a time may change it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from itl.atomic import make_folder
from itl.errors import UserError
from itl.locks import FileLock, acquire_lock, describe_holder, holder_file, is_unsupported, write_holder

LOCK = "LOCK"
_held: set[Path] = set()  # folders that this process has locked


@contextmanager
def lock(folder: str | os.PathLike[str], wait: float = 0.0) -> Iterator[None]:
    """Hold the lock of a model folder.

    The folder is created if it does not exist, and removed at the end if it is still empty.

    Args:
        folder: The model folder.
        wait: Seconds to wait if the lock is held.

    Raises:
        UserError: If the lock is still held, the folder cannot be written or its file system has no locks.
    """
    root = Path(folder)
    is_new = _create(root)
    with _acquire(root, wait):
        try:
            write_holder(root / LOCK)
            _held.add(root.resolve())
            yield
        finally:
            _held.discard(root.resolve())
            with suppress(OSError):
                holder_file(root / LOCK).unlink()
            if is_new and [path.name for path in root.iterdir()] == [LOCK]:
                remove_folder(root)


@contextmanager
def locked(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Hold the lock of a model folder, unless this process holds it already."""
    with nullcontext() if Path(folder).resolve() in _held else lock(folder):
        yield


def remove_folder(root: Path) -> None:
    """Remove a locked folder; it stays if it contains other files than those of the lock."""
    with suppress(OSError):
        holder_file(root / LOCK).unlink(missing_ok=True)
        (root / LOCK).unlink()
        root.rmdir()


def _create(root: Path) -> bool:
    """Create the folder if necessary and return whether it is new."""
    try:
        is_new = not root.exists()
        make_folder(root)
    except OSError as error:
        raise UserError(f"cannot make the model folder {root}: {error.strerror or error}") from None
    return is_new


def _acquire(root: Path, wait: float) -> FileLock:
    try:
        acquired = acquire_lock(root / LOCK, max(wait, 0.0))
    except OSError as error:
        action = "lock" if is_unsupported(error) else "write to"
        raise UserError(
            f"cannot {action} the model folder {root}: {error.strerror or error}; it is unchanged"
        ) from None
    if acquired is None:
        raise UserError(f"{root} is being changed by {describe_holder(root / LOCK)}; wait for it to end")
    return acquired
