"""A folder of images as classes: its sub-folders, with `train/` and `test/` inside honoured."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from itl.apps.images.holdout import beyond, split_held_out
from itl.apps.images.read import SkippedPath, printable_path
from itl.errors import UserError

OTHERS = {"thumbs.db", "desktop.ini", "__macosx"}  # what systems leave in folders; hidden files are passed over too
Classes = dict[str, list[Path]]


@dataclass
class ImageFolder:
    """What a folder holds: for each class, by name, its files in a fixed order; and what is left out, with the reason.

    Nothing is opened: a file that is no image is found when it is read. `has_test`: the folder has its own `test/`.
    """

    folder: Path
    train: Classes
    test: Classes = field(default_factory=dict)
    skipped: list[SkippedPath] = field(default_factory=list)
    has_test: bool = False

    def with_held_out(self, learned: Mapping[str, Collection[str]] | None = None) -> ImageFolder:
        """The same with a fixed part of every class as its test images, unless the folder brings its own.

        `learned`: by class, the marks of files that are not held out, because a model has learned them (`beyond`).
        """
        if self.has_test:
            return self
        known = learned or {}
        parts = {n: split_held_out(files, self.folder, learned=known.get(n, ())) for n, files in self.train.items()}
        train = {name: kept for name, (kept, _) in parts.items()}
        return ImageFolder(self.folder, train, {name: out for name, (_, out) in parts.items() if out}, self.skipped)

    def beyond(self) -> dict[str, list[str]]:
        """By class, the marks of what is learned from now though it might be held out later."""
        if self.has_test:
            return {}
        marks = {n: beyond(files, self.test.get(n, ()), self.folder) for n, files in self.train.items()}
        return {name: some for name, some in marks.items() if some}


def scan_folder(folder: str | os.PathLike[str]) -> ImageFolder:
    """The classes of `folder` and their files. Sub-folders of a class belong to it; links are followed, once each."""
    root = Path(folder)
    problems: list[SkippedPath] = []
    if not root.is_dir():
        what = "is a file" if root.exists() else "does not exist"
        raise UserError(f"{printable_path(root)} {what}; give a folder with a sub-folder of images for each class")
    folders, files = _entries(root, problems, must=True)
    parts = {path.name: path for path in folders if path.name in ("train", "test")}
    split = {name for name, path in parts.items() if _holds_folders(path)}
    if "train" in split:
        train = _classes(parts["train"], problems)
        test = _classes(parts["test"], problems) if "test" in parts else {}
        for path in folders:
            if path.name not in parts:
                problems.append(SkippedPath(path, "it lies beside train/ and test/; only these are read"))
    elif split:
        raise UserError(
            f"{printable_path(root)} has a test/ but no train/; name the folder with the images to learn from train"
        )
    else:
        train, test = {}, {}
        for path in folders:
            _add(train, path, problems)
    problems += [
        SkippedPath(path, "it lies in no class; put it into a sub-folder named after its class") for path in files
    ]
    if not train:
        raise UserError(f"{printable_path(root)} has no class: it needs a sub-folder of images for each class")
    return ImageFolder(root, train, test, problems, has_test=bool(test))


def find_images(folder: str | os.PathLike[str]) -> tuple[list[Path], list[SkippedPath]]:
    """Every file below a folder, whatever its class, and what could not be looked into."""
    problems: list[SkippedPath] = []
    return _below(Path(folder), problems), problems


def class_name(path: Path) -> str:
    """A class's name from its folder's: composed characters (systems differ), bytes that are no text as escapes."""
    return unicodedata.normalize("NFC", printable_path(path.name))


def is_model_folder(folder: Path) -> bool:
    """Whether a folder is a model's, or about to be one: it may lie among the classes, but is none."""
    if not any(os.path.exists(folder / name) for name in ("LOCK", "CURRENT")):
        return False  # which a class of many images is told without being listed once more
    try:
        names = set(os.listdir(folder))
    except OSError:
        return False
    begun = "LOCK" in names and all(name == "LOCK" or name.startswith((".draft-", "generation-")) for name in names)
    return begun or ("CURRENT" in names and any(folder.glob("generation-*/SHA256SUMS")))


def _classes(root: Path, problems: list[SkippedPath]) -> Classes:
    """The classes in `train/` or `test/`."""
    folders, files = _entries(root, problems)
    problems += [
        SkippedPath(path, "it lies in no class; put it into a sub-folder named after its class") for path in files
    ]
    out: Classes = {}
    for path in folders:
        _add(out, path, problems)
    return out


def _add(classes: Classes, path: Path, problems: list[SkippedPath]) -> None:
    """One class and its files; two folders whose names mean the same are one class."""
    if is_model_folder(path):
        problems.append(SkippedPath(path, "a model's folder, not a class; it is left out"))
        return
    files = _below(path, problems)
    if files:
        classes.setdefault(class_name(path), []).extend(files)
    else:
        problems.append(SkippedPath(path, "a class without a file; it is left out"))


def _below(root: Path, problems: list[SkippedPath]) -> list[Path]:
    """All files below `root`, in order; a folder that links lead back to is walked once."""
    out: list[Path] = []
    seen: set[tuple[int, int]] = set()
    waiting = [root]
    while waiting:
        here = waiting.pop()
        try:
            state = os.stat(here)
        except OSError as error:
            problems.append(SkippedPath(here, error.strerror or str(error)))
            continue
        if (state.st_dev, state.st_ino) in seen:
            problems.append(SkippedPath(here, "a link to a folder that is read already"))
            continue
        seen.add((state.st_dev, state.st_ino))
        folders, files = _entries(here, problems)
        out += files
        waiting += reversed(folders)
    return out


def _entries(root: Path, problems: list[SkippedPath], must: bool = False) -> tuple[list[Path], list[Path]]:
    """The folders and the files in a folder, ordered by their names' bytes; links that lead nowhere are problems."""
    folders, files = [], []
    try:
        with os.scandir(root) as entries:
            found = sorted(entries, key=lambda entry: os.fsencode(entry.name))
    except OSError as error:
        if must:
            raise UserError(f"cannot read {printable_path(root)}: {error.strerror or error}") from None
        problems.append(SkippedPath(root, error.strerror or str(error)))
        return [], []
    for entry in found:
        if entry.name.startswith(".") or entry.name.lower() in OTHERS:
            continue
        path = root / entry.name
        try:
            if entry.is_dir():
                folders.append(path)
            elif entry.is_symlink() and not path.exists():
                problems.append(SkippedPath(path, "a link that leads nowhere"))
            else:
                files.append(path)
        except OSError as error:  # a link in a circle
            problems.append(SkippedPath(path, error.strerror or str(error)))
    return folders, files


def _holds_folders(path: Path) -> bool:
    """Whether `train/` or `test/` is a part of a dataset: then it holds classes. Else it is a class of that name."""
    return bool(_entries(path, [])[0])
