"""A folder's files as a parcel that travels between machines, and back; what was sent before stays at home."""

from __future__ import annotations

import os
import shutil
from pathlib import Path, PurePosixPath
from typing import TypedDict

LAST = ("CURRENT", "result.json")  # what makes the rest valid is written after it


class Parcel(TypedDict):
    """New files by path, in the order in which to write them, and all paths there are."""

    files: dict[str, bytes]
    all: list[str]


def pack(folder: Path, sent: dict[str, tuple[int, int]] | None = None) -> Parcel:
    """The files of a folder that are new since `sent` (which is brought up to date), drafts left out."""
    sent = {} if sent is None else sent
    there = (path for path in folder.rglob("*") if not any(part[0] == "." for part in path.relative_to(folder).parts))
    paths = sorted((path for path in there if path.is_file()), key=_late)
    new: dict[str, bytes] = {}
    for path in paths:
        name, about = path.relative_to(folder).as_posix(), path.stat()
        if sent.get(name) != (about.st_mtime_ns, about.st_size):
            new[name] = path.read_bytes()
            sent[name] = (about.st_mtime_ns, about.st_size)
    return {"files": new, "all": [path.relative_to(folder).as_posix() for path in paths]}


def _late(path: Path) -> tuple[bool, str]:
    return path.name in LAST, str(path)


def unpack(folder: Path, parcel: Parcel) -> None:
    """Write a parcel's files, each in one step, then drop generations of models that the sender has no more."""
    for name, content in parcel["files"].items():
        path = folder / _inside(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.arriving")
        with draft.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    kept = {str(PurePosixPath(name).parent) for name in parcel["all"]}
    for old in folder.rglob("generation-*"):
        if old.is_dir() and old.relative_to(folder).as_posix() not in kept:
            shutil.rmtree(old, ignore_errors=True)


def _inside(name: str) -> PurePosixPath:
    """A name that stays within the folder."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"a parcel must not write outside its folder: {name}")
    return path
