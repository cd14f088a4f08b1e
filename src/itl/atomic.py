"""Atomic replacement of files: a reader, or a crash, sees the old content or the new one, never a part of it."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

_CREATE_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a new empty file next to `path`, which replaces it when the context ends without an exception.

    The temporary file has an unpredictable name with the suffix of `path`. It is flushed to disk before it is renamed,
    and removed on failure.

    Raises:
        OSError: The file cannot be written.
    """
    target = Path(path)
    temporary = target.with_name(f".{target.stem}.{secrets.token_hex(8)}.tmp{target.suffix}")
    os.close(os.open(temporary, _CREATE_NEW, 0o666))
    try:
        yield temporary
        flush_to_disk(temporary)
        os.replace(temporary, target)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    flush_to_disk(target.parent)


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Yield a binary file whose content replaces that of `path` when the context ends without an exception.

    Raises:
        OSError: The file cannot be written.
    """
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        yield file
        file.flush()


def write_text_atomic(path: str | os.PathLike[str], text: str) -> None:
    """Replace the content of a text file (UTF-8)."""
    with atomic_write(path) as file:
        file.write(text.encode("utf-8"))


def flush_to_disk(path: Path) -> None:
    """Flush a file or a directory to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
