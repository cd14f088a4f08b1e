"""`SHA256SUMS` of a generation: the checksum and the size of each of its files.

`sha256sum -c` can check the file: sizes are in comments, which it ignores. A file of the wrong size is refused at once,
without reading it.
"""

from __future__ import annotations

import errno
import hashlib
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from itl.atomic import flush_to_disk, write_text_atomic
from itl.errors import UserError
from itl.regular_files import MAX_BYTES, open_regular, read_regular

TENSORS, STATE, CHECKSUMS = "tensors.safetensors", "state.json", "SHA256SUMS"
MAX_TEXT_BYTES = 64 << 20  # a larger state.json or SHA256SUMS was not written by itl
_CHECKSUM = re.compile(r"([0-9a-f]{64})  (.+)")
_SIZE = re.compile(r"# ([0-9]{1,18}) bytes  (.+)")


@dataclass(frozen=True)
class FileEntry:
    """What `SHA256SUMS` says about a file. Earlier versions of itl did not record its size."""

    sha256: str
    size: int | None = None


def write_checksums(generation: Path, known: Mapping[str, FileEntry] | None = None) -> None:
    """Write `SHA256SUMS` over all files of a generation, and flush it and all folders to disk.

    Args:
        generation: The folder. An existing `SHA256SUMS` is replaced.
        known: Entries of files that were not written now. They are not computed again: a file that has been damaged
            since must not get a new, matching checksum.
    """
    known = known or {}
    paths = sorted(p for p in generation.rglob("*") if p.is_file() and p.name != CHECKSUMS)
    files = {path.relative_to(generation).as_posix(): path for path in paths}
    entries = {name: known.get(name) or FileEntry(sha256(path), path.stat().st_size) for name, path in files.items()}
    lines = [f"{entry.sha256}  {name}\n" for name, entry in entries.items()]
    lines += [f"# {entry.size} bytes  {name}\n" for name, entry in entries.items() if entry.size is not None]
    write_text_atomic(generation / CHECKSUMS, "".join(lines))
    for folder in (*(p for p in generation.rglob("*") if p.is_dir()), generation):
        flush_to_disk(folder)


def read_checksums(generation: Path) -> dict[str, FileEntry]:
    """The entries of `SHA256SUMS` by path relative to the generation.

    Raises:
        UserError: A line is malformed or not UTF-8, or a path leads out of the generation.
        FileNotFoundError: The tensors or the state are not listed.
    """
    checksums: dict[str, str] = {}
    sizes: dict[str, int] = {}
    damaged = UserError(f"{generation / CHECKSUMS} is damaged; restore it from a copy")
    try:
        lines = read_regular_text(generation / CHECKSUMS).splitlines()
    except UnicodeDecodeError:
        raise damaged from None
    for line in lines:
        checksum, size = _CHECKSUM.fullmatch(line), _SIZE.fullmatch(line)
        found = checksum or size
        target: Mapping[str, object] = checksums if checksum else sizes
        if found is None or found[2] in target or not _stays_inside(found[2]):
            raise damaged
        if checksum:
            checksums[found[2]] = found[1]
        else:
            sizes[found[2]] = int(found[1])
    for name in (TENSORS, STATE):
        if name not in checksums:
            missing = generation / (name if not (generation / name).exists() else CHECKSUMS)
            raise FileNotFoundError(errno.ENOENT, "missing", str(missing))
    return {name: FileEntry(digest, sizes.get(name)) for name, digest in checksums.items()}


def readable_entries(generation: Path) -> dict[str, FileEntry]:
    """The entries of `SHA256SUMS` that are well-formed, without the others."""
    try:
        lines = read_regular(generation / CHECKSUMS, MAX_TEXT_BYTES).decode("utf-8", "replace").splitlines()
    except OSError:
        return {}
    sizes = {found[2]: int(found[1]) for found in map(_SIZE.fullmatch, lines) if found}
    entries = {found[2]: found[1] for found in map(_CHECKSUM.fullmatch, lines) if found and _stays_inside(found[2])}
    return {name: FileEntry(digest, sizes.get(name)) for name, digest in entries.items()}


def is_listed_but_for_a_byte(generation: Path, name: str) -> bool:
    """Whether `SHA256SUMS` contains the line of a file in its present state, with at most one byte damaged.

    This proves that the file is intact: no other content has nearly the same checksum.
    """
    try:
        line = np.frombuffer(f"{sha256(generation / name)}  {name}".encode(), np.uint8)
        content = np.frombuffer(read_regular(generation / CHECKSUMS, MAX_TEXT_BYTES), np.uint8)
    except OSError:
        return False
    positions = len(content) - len(line) + 1
    if positions < 1:
        return False
    differing = np.zeros(positions, np.uint8)  # a comparison of all windows at once would need 80 times the memory
    for offset, byte in enumerate(line):
        differing += content[offset : offset + positions] != byte
    return bool(differing.min() <= 1)


def verify_file(root: Path, path: Path, entry: FileEntry) -> None:
    """Check a file below `root` against its entry.

    Raises:
        UserError: It is damaged, or not a regular file.
        OSError: It cannot be read.
    """
    check_regular(path, root)
    limit = None if path.name == TENSORS else MAX_BYTES
    if entry.size not in (None, path.stat().st_size) or sha256(path, limit) != entry.sha256:
        raise UserError(f"{path} is damaged (its checksum differs); restore it from a copy")


def check_regular(path: Path, root: Path) -> bool:
    """Reject links, which could lead out of the folder, and devices, which may never end."""
    while path != root:
        mode = path.lstat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise _not_regular(path)
        path = path.parent
    return True


def read_regular_text(path: Path) -> str:
    """Content of a text file of reasonable size.

    Raises:
        UserError: It is too large, or not a regular file.
        OSError: It cannot be read.
        ValueError: It is not UTF-8.
    """
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        raise _not_regular(path)
    if status.st_size > MAX_TEXT_BYTES:
        raise UserError(f"{path} has {status.st_size >> 20} MiB; this is not a model folder of itl")
    return path.read_text(encoding="utf-8")


def sha256(path: Path, max_bytes: int | None = None) -> str:
    """Hexadecimal SHA-256 of a file.

    Raises:
        OSError: It cannot be read, is not a regular file, or has more than `max_bytes`.
    """
    with open_regular(path, max_bytes) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _stays_inside(name: str) -> bool:
    """Whether a relative path cannot lead out of its folder."""
    return not {"", ".", ".."} & set(name.split("/"))


def _not_regular(path: Path) -> UserError:
    return UserError(f"{path} is not a regular file; a model folder contains only regular files and folders")
