"""One lock per job, held by the process that runs it. The operating system releases it when the process ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType

from itl.errors import UserError

LOCKS_FOLDER = ".locks"


class JobLock:
    """Lock of a job, held until `release` or until the process ends."""

    def __init__(self, handle: int) -> None:
        self.handle: int | None = handle

    def release(self) -> None:
        """Release the lock."""
        if self.handle is not None:
            os.close(self.handle)
            self.handle = None

    def __enter__(self) -> JobLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def acquire_job_lock(root: Path, name: str, wait: bool = False) -> JobLock | None:
    """Lock the job `name` under `root`; None if another process holds the lock and `wait` is false.

    Raises:
        UserError: If the folder cannot be written or its file system has no locks.
    """
    folder = root / LOCKS_FOLDER
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / f"{name}.lock", os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise UserError(f"Cannot write to {root}: {error.strerror or error}. Choose another --out.") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        os.close(handle)
        return None
    except OSError as error:
        os.close(handle)
        raise UserError(f"Cannot lock files in {root}: {error.strerror or error}. Choose another --out.") from error
    return JobLock(handle)
