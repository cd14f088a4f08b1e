"""A disk without free space: files can grow only by as much as was removed before."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


def used_bytes(folder: Path) -> int:
    """Bytes of all files below a folder; hard links are counted once."""
    sizes = {}
    for root, _, files in os.walk(folder):
        for file in files:
            status = os.lstat(os.path.join(root, file))
            sizes[status.st_ino] = status.st_size
    return sum(sizes.values())


@contextmanager
def full_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let every write fail with ENOSPC that makes the files below `folder` larger than they are now."""
    capacity = used_bytes(folder)
    real = os.fdopen

    class LimitedFile(io.FileIO):
        def write(self, data: Any) -> int:
            end = self.tell() + len(data)
            if used_bytes(folder) + max(0, end - os.fstat(self.fileno()).st_size) > capacity:
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(data)

    def fdopen(handle: int, mode: str = "r", *args: Any, **options: Any) -> Any:
        if "w" not in mode and "a" not in mode:
            return real(handle, mode, *args, **options)
        return io.BufferedWriter(LimitedFile(handle, mode))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdopen", fdopen)
        yield
