"""Durable files: every file of itl is written through this module.

A replaced file has its old content or the new one, never a part of it, even after a power failure. Symbolic links are
never followed, because a folder may come from somebody else.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

_NO_LINKS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
_CREATE_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | _NO_LINKS


@contextmanager
def create_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Yield a new binary file, which is flushed to disk when the context ends, and removed after an exception.

    Raises:
        FileExistsError: There is a file or a link of this name.
        OSError: The file cannot be written.
    """
    handle = os.open(path, _CREATE_NEW, 0o666)
    try:
        with _named_errors(path), os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        with suppress(OSError):
            os.unlink(path)
        raise


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Yield a binary file whose content replaces that of `path` when the context ends without an exception.

    The content is written to a temporary file with an unpredictable name, which is flushed to disk and renamed. If
    `path` is a link, the link is replaced.

    Raises:
        OSError: The file cannot be written, or `path` is a folder or a device.
    """
    target = Path(path)
    _check_replaceable(target)
    temporary = target.with_name(f".{target.stem}.{secrets.token_hex(8)}.tmp{target.suffix}")
    with _named_errors(target, temporary):
        with create_file(temporary) as file:
            yield file
        try:
            os.replace(temporary, target)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise
        flush_to_disk(target.parent)


def remove_leftovers(folder: str | os.PathLike[str], names: Iterable[str]) -> None:
    """Remove what killed processes left of these files. No other process may be writing them.

    Args:
        folder: The folder of the files.
        names: Their names.
    """
    files = (Path(name) for name in names)
    parts = (re.escape(f".{file.stem}.") + "[0-9a-f]{16}" + re.escape(f".tmp{file.suffix}") for file in files)
    leftover = re.compile("|".join(parts))
    with suppress(OSError):
        for entry in os.listdir(folder):
            if leftover.fullmatch(entry):
                os.unlink(Path(folder) / entry)


def write_text_atomic(path: str | os.PathLike[str], text: str) -> None:
    """Replace the content of a text file (UTF-8)."""
    with atomic_write(path) as file:
        file.write(text.encode("utf-8"))


def append(path: str | os.PathLike[str], data: bytes) -> None:
    """Append to a file and flush it to disk. The file is created if necessary.

    Raises:
        OSError: The file cannot be written, or is a link.
    """
    with _named_errors(path), open_without_links(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def overwrite(path: str | os.PathLike[str], data: bytes) -> None:
    """Write over the beginning of a file and flush it. This needs no space on the disk, but is not atomic.

    Raises:
        OSError: The file cannot be written, or is a link.
    """
    with _named_errors(path), open_without_links(path, os.O_WRONLY) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def open_without_links(path: str | os.PathLike[str], flags: int) -> BinaryIO:
    """Open a file for writing with the given flags of `os.open`, unless it is a link."""
    return os.fdopen(os.open(path, flags | _NO_LINKS, 0o666), "ab" if flags & os.O_APPEND else "wb")


def make_folder(path: str | os.PathLike[str]) -> None:
    """Create a folder and its parents, as far as they are missing, and flush the new entries to disk.

    Raises:
        OSError: The folder cannot be created.
    """
    folder = Path(path)
    missing = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for new in reversed(missing):
        flush_to_disk(new.parent)


def flush_to_disk(path: Path) -> None:
    """Flush a file or a folder (the names in it) to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        with _named_errors(path):
            os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _named_errors(path: str | os.PathLike[str], temporary: Path | None = None) -> Iterator[None]:
    """Name the file in errors of the operating system, which names none or a temporary one."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename in (None, temporary, os.fspath(temporary or path)):
            error.filename, error.filename2 = os.fspath(path), None
        raise


def _check_replaceable(target: Path) -> None:
    """Refuse to replace a folder or a device such as /dev/null, or a link to one."""
    try:
        mode = target.stat().st_mode
    except OSError:  # there is no such file yet, or a link leads nowhere
        return
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "Not a regular file", str(target))
