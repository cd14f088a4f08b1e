"""One lock per job, held by the process that runs it. The operating system releases it when the process ends."""

from __future__ import annotations

from pathlib import Path

from itl.errors import UserError
from itl.locks import FileLock, acquire_lock, is_unsupported

LOCKS_FOLDER = ".locks"


def acquire_job_lock(root: Path, name: str, wait: bool = False) -> FileLock | None:
    """Lock the job `name` under `root`; None if another process holds the lock and `wait` is false.

    Raises:
        UserError: If the folder cannot be written or its file system has no locks.
    """
    try:
        return acquire_lock(root / LOCKS_FOLDER / f"{name}.lock", timeout=-1 if wait else 0)
    except OSError as error:
        action = "lock files in" if is_unsupported(error) else "write to"
        raise UserError(f"Cannot {action} {root}: {error.strerror or error}. Choose another --out.") from error
