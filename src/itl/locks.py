"""Locks on files, one holder at a time. The operating system releases a lock when its process ends, however it ends."""

from __future__ import annotations

import errno
import json
import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

import filelock

from itl.atomic import write_text_atomic
from itl.strict_json import read_json

_UNSUPPORTED = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}


class FileLock(filelock.FileLock):
    """Lock from `acquire_lock`, held until `release`, the end of a `with` block or the end of the process."""

    def __enter__(self) -> Self:
        return self  # the lock is held already; the base class would acquire it a second time

    def _fallback_to_soft_lock(self) -> None:
        # A soft lock is a file that exists: it would outlive a process that is killed.
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


def acquire_lock(path: Path, timeout: float = 0.0) -> FileLock | None:
    """Lock a file, which is created if necessary. Its content is undefined, so it must contain nothing else.

    Args:
        path: The lock file.
        timeout: Seconds to wait if the lock is held; negative to wait without limit.

    Returns:
        The lock, or None if it is still held, by another process or by this one. Any thread may release it.

    Raises:
        OSError: If the file cannot be written or its file system has no locks (see `is_unsupported`).
    """
    lock = FileLock(path, thread_local=False)
    try:
        lock.acquire(timeout)
    except filelock.Timeout:
        return None
    return lock


def is_unsupported(error: OSError) -> bool:
    """Return whether an error of `acquire_lock` means that the file system has no locks."""
    return error.errno in _UNSUPPORTED


def holder_file(path: Path) -> Path:
    """Return the file that names the holder of a lock. The lock file cannot: whoever opens it may empty it."""
    return path.with_name(f"{path.name}.json")


def write_holder(path: Path) -> None:
    """Name this process as the holder of a lock, for `describe_holder`; on a full disk the holder stays unnamed."""
    holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
    with suppress(OSError):
        write_text_atomic(holder_file(path), json.dumps(holder))


def describe_holder(path: Path) -> str:
    """Return a description of the process that holds a lock, such as "process 7 on host since 2026-01-31 12:00:00"."""
    try:
        holder = read_json(holder_file(path))
        pid, host, since = int(holder["pid"]), str(holder["host"])[:80], str(holder["since"])[:30]
    except (OSError, ValueError, LookupError, TypeError):
        return "another process"
    if host == socket.gethostname() and not _is_alive(pid):  # it was killed, and the present holder is not yet named
        return "another process"
    return f"process {pid} on {host} since {since}"


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        pass
    return True
