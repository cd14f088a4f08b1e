"""Copies the files of a folder between machines; only files that changed since the last copy are sent."""

from __future__ import annotations

import shutil
from pathlib import Path, PurePosixPath
from typing import TypedDict

from itl.atomic import atomic_write, make_folder

WRITTEN_LAST = ("CURRENT", "result.json")  # these files declare the others valid


class FileBundle(TypedDict):
    """Contents of changed files by path, in writing order, and the paths of all files of the folder."""

    files: dict[str, bytes]
    all: list[str]


def pack(folder: Path, sent: dict[str, tuple[int, int]] | None = None) -> FileBundle:
    """Bundle the files of a folder, without hidden files and without those that are unchanged.

    Args:
        folder: Folder to read.
        sent: Modification time and size of each file sent before; updated in place.
    """
    sent = {} if sent is None else sent
    visible = (path for path in folder.rglob("*") if not any(part[0] == "." for part in path.relative_to(folder).parts))
    paths = sorted(
        (path for path in visible if path.is_file()), key=lambda path: (path.name in WRITTEN_LAST, str(path))
    )
    changed: dict[str, bytes] = {}
    for path in paths:
        name, stat = path.relative_to(folder).as_posix(), path.stat()
        if sent.get(name) != (stat.st_mtime_ns, stat.st_size):
            changed[name] = path.read_bytes()
            sent[name] = (stat.st_mtime_ns, stat.st_size)
    return {"files": changed, "all": [path.relative_to(folder).as_posix() for path in paths]}


def unpack(folder: Path, bundle: FileBundle) -> None:
    """Write the files of a bundle, each atomically, and remove model generations that the sender has removed.

    Raises:
        ValueError: If a path of the bundle leads out of the folder.
    """
    for name, content in bundle["files"].items():
        path = folder / _checked_path(name)
        make_folder(path.parent)
        with atomic_write(path) as file:
            file.write(content)
    folders = {str(PurePosixPath(name).parent) for name in bundle["all"]}
    for generation in folder.rglob("generation-*"):
        if generation.is_dir() and generation.relative_to(folder).as_posix() not in folders:
            shutil.rmtree(generation, ignore_errors=True)


def _checked_path(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"The file bundle contains a path outside its folder: {name}")
    return path
