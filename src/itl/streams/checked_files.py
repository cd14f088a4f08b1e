"""Reading dataset files: clear errors for missing and unreadable files, and md5 checks."""

from __future__ import annotations

import hashlib
from pathlib import Path

from itl.errors import UserError
from itl.regular_files import open_regular, read_regular


def read_bytes(path: Path) -> bytes:
    """Content of a file.

    Raises:
        UserError: The file cannot be read.
    """
    try:
        return read_regular(path)
    except OSError as error:
        raise read_error(path, error) from error


def read_error(path: Path, error: OSError) -> UserError:
    """Error for a file or folder that cannot be read."""
    return UserError(f"cannot read {path}: {error.strerror or error}; check the file and its permissions")


def md5_of(data: bytes) -> str:
    """Hexadecimal md5 of bytes. It detects damaged and wrong files; the authors publish no stronger checksum."""
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def md5_of_file(path: Path) -> str:
    """Hexadecimal md5 of a file, read in blocks."""
    try:
        with open_regular(path) as file:
            return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    except OSError as error:
        raise read_error(path, error) from error


def check_md5(name: object, found: str, expected: str) -> None:
    """Raise a `UserError` about the file `name` unless its md5 is the official one."""
    if found != expected:
        raise UserError(
            f"{name} is damaged or not the official file (md5 {found}, expected {expected}); "
            "replace it by the official file, or move it away and use --download"
        )


def missing_error(stream: str, root: Path, files: str) -> UserError:
    """Error for a missing dataset: which files to put where, or how to download them."""
    if root.is_file():
        return UserError(f"{root} is not a file of {stream}: give {files}, or the folder that contains it")
    return UserError(f"{stream} is not in {root}: put {files} there, or use --download (in Python download=True)")
