"""Scan an image folder: one sub-folder per class, or `train/` and `test/` with one sub-folder per class each."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from itl.apps.images.holdout import split_held_out, train_only_hashes
from itl.apps.images.picture_list import LIST_FILE, listed_paths, read_list
from itl.apps.images.read import SkippedPath, printable_path
from itl.errors import UserError

IGNORED_NAMES = {"thumbs.db", "desktop.ini", "__macosx"}  # created by operating systems; hidden files are ignored too
FilesByClass = dict[str, list[Path]]


@dataclass
class ImageFolder:
    """The files of an image folder by class. Files are not opened: whether one is an image is known when it is read.

    Attributes:
        folder: The folder that was scanned.
        train: Training files by class name, sorted.
        test: Test files by class name, sorted.
        skipped: Files and folders that belong to no class, with reasons.
        has_test: Whether the folder contains its own `test/`.
    """

    folder: Path
    train: FilesByClass
    test: FilesByClass = field(default_factory=dict)
    skipped: list[SkippedPath] = field(default_factory=list)
    has_test: bool = False

    def with_held_out(self, train_only: Mapping[str, Collection[str]] | None = None) -> ImageFolder:
        """Return a copy with some files of every class held out as test files, unless the folder has its own `test/`.

        Args:
            train_only: By class, hashes of files that must not be held out because a model was trained on them (see
                `train_only_hashes`).
        """
        if self.has_test:
            return self
        fixed = train_only or {}
        splits = {
            name: split_held_out(files, self.folder, train_only=fixed.get(name, ()))
            for name, files in self.train.items()
        }
        train = {name: kept for name, (kept, _) in splits.items()}
        test = {name: held_out for name, (_, held_out) in splits.items() if held_out}
        return ImageFolder(self.folder, train, test, self.skipped)

    def without_test(self) -> ImageFolder:
        """Return a copy without test files."""
        return replace(self, test={})

    def train_only_hashes(self) -> dict[str, list[str]]:
        """Return, by class, the hashes of training files that might be held out once the class has grown."""
        if self.has_test:
            return {}
        hashes = {
            name: train_only_hashes(files, self.test.get(name, ()), self.folder) for name, files in self.train.items()
        }
        return {name: some for name, some in hashes.items() if some}


def scan_folder(folder: str | os.PathLike[str]) -> ImageFolder:
    """List the image files of a folder by class.

    The folder contains one sub-folder per class, or `train/` and optionally `test/` with one sub-folder per class each.
    All files below a class folder belong to the class. Symbolic links are followed, each target once. A folder with a
    list of pictures (`picture_list.py`) has the classes and files of the list.

    Args:
        folder: The folder.

    Returns:
        The files by class, and what was skipped.

    Raises:
        UserError: If the folder does not exist, cannot be read, is a model folder or contains no class.
    """
    root = Path(folder)
    skipped: list[SkippedPath] = []
    if not os.fspath(folder):
        raise UserError("an image folder's name is empty; give folders of images to learn from")
    if is_model_folder(root):
        raise UserError(f"{printable_path(root)} is a model folder; give folders of images to learn from")
    if not root.is_dir():
        problem = "is a file" if root.exists() else "does not exist"
        raise UserError(f"{printable_path(root)} {problem}; give a folder with one sub-folder of images per class")
    if (root / LIST_FILE).is_file():
        return _scan_list(root)
    folders, files = _list_folder(root, skipped, required=True)
    splits = {path.name: path for path in folders if path.name in ("train", "test")}
    with_classes = {name for name, path in splits.items() if _has_folders(path)}
    if "train" in with_classes:
        train = _scan_classes(splits["train"], skipped)
        test = _scan_classes(splits["test"], skipped) if "test" in splits else {}
        skipped += [
            SkippedPath(path, "outside train/ and test/; only these are read")
            for path in folders
            if path.name not in splits
        ]
    elif with_classes:
        raise UserError(
            f"{printable_path(root)} has classes in test/ but none in train/; put the training images into train/"
        )
    else:
        train, test = _classes_in(folders, skipped), {}
    skipped += _files_without_class(files)
    if not train:
        raise UserError(f"{printable_path(root)} contains no class; create one sub-folder of images per class")
    return ImageFolder(root, train, test, skipped, has_test=bool(test))


def _scan_list(root: Path) -> ImageFolder:
    pictures = read_list(root)
    train = listed_paths(root, pictures.train)
    if not train:
        raise UserError(f"{printable_path(root)} lists no training picture; add pictures to it")
    return ImageFolder(root, train, listed_paths(root, pictures.test), has_test=True)


def find_images(folder: str | os.PathLike[str]) -> tuple[list[Path], list[SkippedPath]]:
    """Return all files below a folder, and the folders that could not be read."""
    skipped: list[SkippedPath] = []
    return _list_recursively(Path(folder), skipped), skipped


def class_name(path: Path) -> str:
    """Return the class name for a folder: printable, with accents composed, since file systems differ in that."""
    return unicodedata.normalize("NFC", printable_path(path.name))


def is_model_folder(folder: Path) -> bool:
    """Return whether a folder is a model folder, or one in which a first model is being saved."""
    if not any(os.path.exists(folder / name) for name in ("LOCK", "CURRENT")):
        return False  # avoids listing a class folder with many images
    try:
        names = set(os.listdir(folder))
    except OSError:
        return False
    started = "LOCK" in names and all(name.startswith(("LOCK", ".LOCK.", ".draft-", "generation-")) for name in names)
    return started or ("CURRENT" in names and any(folder.glob("generation-*/SHA256SUMS")))


def _scan_classes(root: Path, skipped: list[SkippedPath]) -> FilesByClass:
    """Return the classes in `train/` or `test/`."""
    folders, files = _list_folder(root, skipped)
    skipped += _files_without_class(files)
    return _classes_in(folders, skipped)


def _files_without_class(files: list[Path]) -> list[SkippedPath]:
    return [
        SkippedPath(path, "not in a class folder; move it into a sub-folder named after its class") for path in files
    ]


def _classes_in(folders: list[Path], skipped: list[SkippedPath]) -> FilesByClass:
    """Return the files of each class folder; folders whose names normalize to the same class name are merged."""
    classes: FilesByClass = {}
    for path in folders:
        if is_model_folder(path):
            skipped.append(SkippedPath(path, "a model folder, not a class"))
        elif files := _list_recursively(path, skipped):
            classes.setdefault(class_name(path), []).extend(files)
        else:
            skipped.append(SkippedPath(path, "a class folder without files"))
    return classes


def _list_recursively(root: Path, skipped: list[SkippedPath]) -> list[Path]:
    """Return all files below `root`, sorted; a folder that is reachable through several links is listed once."""
    files: list[Path] = []
    visited: set[tuple[int, int]] = set()
    stack = [root]
    while stack:
        folder = stack.pop()
        try:
            info = os.stat(folder)
        except OSError as error:
            skipped.append(SkippedPath(folder, error.strerror or str(error)))
            continue
        if (info.st_dev, info.st_ino) in visited:
            skipped.append(SkippedPath(folder, "a link to a folder that was already read"))
            continue
        visited.add((info.st_dev, info.st_ino))
        subfolders, direct_files = _list_folder(folder, skipped)
        files += direct_files
        stack += reversed(subfolders)
    return files


def _list_folder(root: Path, skipped: list[SkippedPath], required: bool = False) -> tuple[list[Path], list[Path]]:
    """Return the folders and the files in a folder, sorted by the bytes of their names; broken links are skipped."""
    folders, files = [], []
    try:
        with os.scandir(root) as iterator:
            entries = sorted(iterator, key=lambda entry: os.fsencode(entry.name))
    except OSError as error:
        if required:
            raise UserError(f"cannot read {printable_path(root)}: {error.strerror or error}") from None
        skipped.append(SkippedPath(root, error.strerror or str(error)))
        return [], []
    for entry in entries:
        if entry.name.startswith(".") or entry.name.lower() in IGNORED_NAMES:
            continue
        path = root / entry.name
        try:
            if entry.is_dir():
                folders.append(path)
            elif entry.is_symlink() and not path.exists():
                skipped.append(SkippedPath(path, "a broken link"))
            else:
                files.append(path)
        except OSError as error:  # a circular link
            skipped.append(SkippedPath(path, error.strerror or str(error)))
    return folders, files


def _has_folders(path: Path) -> bool:
    """Return whether `train/` or `test/` contains folders: then it is a split, otherwise a class of that name."""
    return bool(_list_folder(path, [])[0])
