"""Who works on what: a lock of the operating system's for each piece, which ends with the process that holds it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType

from itl.errors import UserError

LOCKS = ".locks"


class Claim:
    """A piece of work that is ours until `release`, or until this process ends, however it ends."""

    def __init__(self, handle: int) -> None:
        self.handle: int | None = handle

    def release(self) -> None:
        """Let others have it."""
        if self.handle is not None:
            os.close(self.handle)
            self.handle = None

    def __enter__(self) -> Claim:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def claim(root: Path, name: str, wait: bool = False) -> Claim | None:
    """The claim to `name` under `root`; None where somebody else has it (or, with `wait`, once they are done)."""
    place = root / LOCKS
    try:
        place.mkdir(parents=True, exist_ok=True)
        handle = os.open(place / f"{name}.lock", os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise UserError(f"cannot write to {root}: {error.strerror or error}; choose another --out") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        os.close(handle)
        return None
    except OSError as error:
        os.close(handle)
        raise UserError(f"cannot lock files in {root}: {error.strerror or error}; choose another --out") from error
    return Claim(handle)
