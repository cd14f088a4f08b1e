"""Files that are what they claim to be: read with a clear line when they cannot be, checked by md5 before use."""

from __future__ import annotations

import hashlib
from pathlib import Path

from itl.errors import UserError


def read_bytes(path: Path) -> bytes:
    """The whole file, or a UserError that says why not."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise cannot_read(path, error) from error


def cannot_read(path: Path, error: OSError) -> UserError:
    """The error for a file or folder the system will not let us read."""
    return UserError(f"cannot read {path}: {error.strerror or error}; check the file and its permissions")


def md5_of(data: bytes) -> str:
    """The md5 of bytes, in hexadecimal. Against damage and mix-ups; it is what the authors publish."""
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def md5_of_file(path: Path) -> str:
    """The md5 of a file, read in pieces."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    except OSError as error:
        raise cannot_read(path, error) from error


def check_md5(what: object, found: str, expected: str) -> None:
    """Refuse `what` unless its md5 is the official one."""
    if found != expected:
        raise UserError(
            f"{what} is damaged or not the official file (md5 {found}, expected {expected}); "
            "put the official one in its place, or move it away and use --download"
        )


def missing(stream: str, root: Path, files: str) -> UserError:
    """The error for a dataset that is not there: what to put where, or how to have it fetched."""
    if root.is_file():
        return UserError(f"{root} is not a file of {stream}: give {files}, or the folder it lies in")
    return UserError(f"{stream} is not in {root}: put {files} there, or use --download (in Python download=True)")
