"""Copy image files into one folder per class. Nothing is overwritten, and no link is followed."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from pathlib import Path

from itl.apps.images.image_folder import is_model_folder
from itl.apps.images.read import printable_path
from itl.atomic import create_file, make_folder
from itl.checkpoint.generation_list import GENERATION_NAME
from itl.errors import UserError
from itl.regular_files import open_regular

MAX_NAME_BYTES = 200  # of a copy; file systems allow 255


class SortedCopies:
    """Copies files into sub-folders of a folder, which is created with the first file.

    Args:
        root: The folder.
        empty: Whether it must not contain anything yet.

    Raises:
        UserError: If the folder is a link, a file, a model folder or in a state of a model, or is not empty though it
            must be.
    """

    def __init__(self, root: str | os.PathLike[str], empty: bool = False) -> None:
        self.root, self.count = Path(root), 0
        if not os.fspath(root):
            raise UserError("the name of the folder for the copies is empty; give a folder")
        for path in (self.root.absolute(), *self.root.absolute().parents):
            if GENERATION_NAME.fullmatch(path.name) and is_model_folder(path.parent):
                raise UserError(f"{printable_path(path)} is a state of a model; give another folder for the copies")
        if _is_folder(self.root):
            if is_model_folder(self.root):
                raise UserError(f"{printable_path(self.root)} is a model folder; give another folder for the copies")
            if empty and any(self.root.iterdir()):
                raise UserError(f"{printable_path(self.root)} is not empty; give a new folder for the copies")

    def add(self, source: Path, folder: str, name: str) -> Path:
        """Copy a file to `folder/name` below the root, with a number in the name if it is taken.

        Returns:
            The copy.

        Raises:
            UserError: If the file cannot be read or the copy cannot be written.
        """
        target = self.root / folder
        try:
            for path in (self.root, target):
                if not _is_folder(path):
                    make_folder(path)
            copy = _copy(source, target, name)
        except OSError as error:
            where = printable_path(error.filename or target)
            raise UserError(f"cannot copy {printable_path(source)}: {where}: {error.strerror or error}") from None
        self.count += 1
        return copy


def _copy(source: Path, folder: Path, name: str) -> Path:
    stem, suffix = os.path.splitext(name)
    while len(os.fsencode(stem + suffix)) > MAX_NAME_BYTES and len(stem) > 1:
        stem = stem[:-1]
    with open_regular(source) as content:
        for number in range(1, 1_000_000):
            target = folder / (f"{stem}{suffix}" if number == 1 else f"{stem}-{number}{suffix}")
            try:
                with create_file(target) as file:
                    shutil.copyfileobj(content, file)
                return target
            except FileExistsError:
                continue
    raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), str(folder / name))


def _is_folder(path: Path) -> bool:
    """Return whether there is a folder.

    Raises:
        UserError: If there is a link or a file instead.
    """
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return False
    except OSError as error:
        raise UserError(f"cannot use {printable_path(path)}: {error.strerror or error}") from None
    if not stat.S_ISDIR(mode):
        kind = "link" if stat.S_ISLNK(mode) else "file"
        raise UserError(f"{printable_path(path)} is a {kind}; copies are only written into folders")
    return True
