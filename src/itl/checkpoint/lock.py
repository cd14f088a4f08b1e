"""One writer at a time: whoever changes a model folder holds its lock, and says who it is."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from itl.errors import UserError

LOCK = "LOCK"
EVERY = 0.2  # seconds between two tries while waiting
_held: set[Path] = set()  # by this process


@contextmanager
def lock(folder: str | os.PathLike[str], wait: float = 0.0) -> Iterator[None]:
    """Hold the folder's lock; it is made if it is not there. Somebody else's is waited for, at most `wait` seconds.

    The lock is the operating system's and ends with the process that holds it, however that ends: what a dead process
    left in the file LOCK is of no consequence. What is written there is for people, and for the refusal.
    """
    root = Path(folder)
    made = _make(root)
    handle = _acquire(root, wait)
    try:
        with suppress(OSError):  # a full disk: what would make room on it must not be refused for this
            os.ftruncate(handle, 0)
            os.pwrite(handle, json.dumps(_myself()).encode(), 0)
        _held.add(root.resolve())
        yield
    finally:
        _held.discard(root.resolve())
        with suppress(OSError):
            os.ftruncate(handle, 0)
        if made and [p.name for p in root.iterdir()] == [LOCK]:  # nothing came of it: leave nothing behind
            with suppress(OSError):
                (root / LOCK).unlink()
                root.rmdir()
        os.close(handle)


@contextmanager
def locked(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Hold the folder's lock, unless this process holds it already."""
    with nullcontext() if Path(folder).resolve() in _held else lock(folder):
        yield


def _make(root: Path) -> bool:
    """Make the folder; whether it is new."""
    try:
        new = not root.exists()
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the model folder {root}: {error.strerror or error}") from None
    return new


def _acquire(root: Path, wait: float) -> int:
    import fcntl

    path, until = root / LOCK, time.monotonic() + wait
    while True:
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
        except OSError as error:
            raise UserError(
                f"cannot write to the model folder {root}: {error.strerror or error}; it is unchanged"
            ) from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            if time.monotonic() >= until:
                raise UserError(f"{root} is being changed by {_holder(path)}; wait for it to end") from None
            time.sleep(EVERY)
            continue
        except OSError as error:
            os.close(handle)
            raise UserError(f"cannot lock the model folder {root}: {error.strerror or error}") from None
        with suppress(OSError):
            if os.fstat(handle).st_ino == os.stat(path).st_ino:
                return handle
        os.close(handle)  # somebody removed the file between our opening and our locking it


def _myself() -> dict[str, Any]:
    return {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}


def _holder(path: Path) -> str:
    """Who holds the lock, in words."""
    try:
        who = json.loads(path.read_text())
        pid, host, since = int(who["pid"]), str(who["host"])[:80], str(who["since"])[:30]
    except (OSError, ValueError, LookupError, TypeError):
        return "another process"
    ended = host == socket.gethostname() and not _lives(pid)
    return f"process {pid} on {host} since {since}" + (" (ended; its children still hold the lock)" if ended else "")


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        pass
    return True
