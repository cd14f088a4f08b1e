"""Read files from untrusted folders: regular files only, because a pipe or a device may never end."""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader

MAX_BYTES = 512 << 20  # of a file that is read at once
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)  # opening a pipe would wait for data


def open_regular(path: str | os.PathLike[str], max_bytes: int | None = None) -> BufferedReader:
    """Open a file for reading.

    Args:
        path: The file, or a link to it.
        max_bytes: Refuse a larger file.

    Raises:
        OSError: The file cannot be opened, is a pipe, a device or a folder, or is too large.
    """

    def opener(name: str, _: int) -> int:
        handle = os.open(name, _FLAGS)
        try:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, "not a regular file", name)
            if max_bytes is not None and status.st_size > max_bytes:
                raise OSError(errno.EFBIG, f"it has more than {max_bytes >> 20} MiB", name)
        except BaseException:
            os.close(handle)
            raise
        return handle

    return open(path, "rb", opener=opener)


def read_regular(path: str | os.PathLike[str], max_bytes: int = MAX_BYTES) -> bytes:
    """Content of a file.

    Raises:
        OSError: As in `open_regular`.
    """
    with open_regular(path, max_bytes) as file:
        return file.read()
