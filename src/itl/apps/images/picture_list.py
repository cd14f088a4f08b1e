"""Image folders whose classes are listed in a file, so that class names need not be file names.

A listed folder holds `itl-pictures.json`, which names the files of each class. The files themselves are in the folder
`files` beside it, which several lists share: moving an image to another class or list changes no image file.
"""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from itl.atomic import make_folder, write_text_atomic
from itl.errors import UserError
from itl.regular_files import read_regular

LIST_FILE, FILES_FOLDER = "itl-pictures.json", "files"
MAX_LIST_BYTES = 64 << 20
MAX_CLASS_NAME = 100  # characters
PICTURE_FILE_NAME = re.compile(r"[0-9a-f]{32}\.[a-z]{3,4}")


class PictureList(BaseModel):
    """The content of a list file: names of image files by class."""

    model_config = ConfigDict(strict=True, extra="forbid")

    format: Literal[1] = 1
    train: dict[str, list[str]] = {}
    test: dict[str, list[str]] = {}

    @field_validator("train", "test")
    @classmethod
    def _check(cls, classes: dict[str, list[str]]) -> dict[str, list[str]]:
        for name, files in classes.items():
            if check_class_name(name) != name:
                raise ValueError("a class name is not normalized")
            if not all(PICTURE_FILE_NAME.fullmatch(file) for file in files):
                raise ValueError("a file name is not 32 hexadecimal digits and a suffix")
        return classes

    def files(self) -> set[str]:
        """Return all file names of the list."""
        return {file for part in (self.train, self.test) for files in part.values() for file in files}


def check_class_name(name: str) -> str:
    """Return a class name without surrounding spaces and with composed accents.

    Raises:
        UserError: If the name is empty, too long, or contains control characters.
    """
    name = unicodedata.normalize("NFC", name).strip()
    if not name:
        raise UserError("a class name must not be empty; type a name")
    if len(name) > MAX_CLASS_NAME:
        raise UserError(f"a class name has at most {MAX_CLASS_NAME} characters; choose a shorter one")
    if not name.isprintable():
        raise UserError("a class name must be one line without control characters; choose another one")
    return name


def read_list(folder: Path) -> PictureList:
    """Return the list of a folder; an empty one if there is none.

    Raises:
        UserError: If the file cannot be read or is invalid.
    """
    file = folder / LIST_FILE
    try:
        return PictureList.model_validate_json(read_regular(file, MAX_LIST_BYTES))
    except FileNotFoundError:
        return PictureList()
    except (ValidationError, ValueError) as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
        raise UserError(f"{file} is not a valid list of pictures ({reason}); restore it from a copy") from None
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror or error}; restore it from a copy") from None


def write_list(folder: Path, pictures: PictureList) -> None:
    """Replace the list of a folder, atomically; the folder is created if necessary.

    Raises:
        UserError: If the file cannot be written.
    """
    try:
        make_folder(folder)
        write_text_atomic(folder / LIST_FILE, pictures.model_dump_json(indent=1))
    except OSError as error:
        raise UserError(f"cannot write {folder / LIST_FILE}: {error.strerror or error}; it is unchanged") from None


def listed_paths(folder: Path, classes: dict[str, list[str]]) -> dict[str, list[Path]]:
    """Return the paths of listed files by class, sorted, without classes that list no file."""
    root = folder.parent / FILES_FOLDER
    return {name: [root / file for file in sorted(files)] for name, files in sorted(classes.items()) if files}
