"""Read uploaded pictures from requests: image files, and zip files whose folders name classes."""

from __future__ import annotations

import asyncio
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import BinaryIO

from starlette.datastructures import UploadFile
from starlette.requests import Request

from itl.apps.images.image_folder import IGNORED_NAMES
from itl.apps.server.limits import Limits
from itl.errors import UserError

ZIP_MAGIC = b"PK\x03\x04"


@dataclass(frozen=True)
class UploadedFile:
    """One uploaded image file.

    Attributes:
        name: Its file name, for messages only.
        data: Its content.
        class_name: Class given by a folder of a zip file; None otherwise.
    """

    name: str
    data: bytes
    class_name: str | None = None


async def read_uploads(request: Request, limits: Limits) -> tuple[list[UploadedFile], dict[str, str]]:
    """Return the files and the text fields of a request.

    A request is a form (`multipart/form-data`) with any number of files, or the content of one image file.

    Raises:
        UserError: If there is no file, or a limit is exceeded, or a zip file is not acceptable.
    """
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        data = await request.body()
        return [UploadedFile("picture", data)] if data else [], {}
    files: list[UploadedFile] = []
    fields: dict[str, str] = {}
    async with request.form(max_files=limits.files, max_fields=20) as form:
        for key, value in form.multi_items():
            if isinstance(value, UploadFile):
                files += await asyncio.to_thread(_read_file, value.filename or "picture", value.file, limits)
            else:
                fields[key] = value
    if len(files) > limits.files:
        raise UserError(f"at most {limits.files} pictures can be sent at once; send them in parts")
    return files, fields


def _read_file(name: str, file: BinaryIO, limits: Limits) -> list[UploadedFile]:
    start = file.read(len(ZIP_MAGIC))
    file.seek(0)
    if start == ZIP_MAGIC:
        return list(read_zip(file, limits))
    data = file.read(limits.file_bytes + 1)
    if len(data) > limits.file_bytes:
        raise UserError(f"{name[:100]} is larger than {limits.file_bytes >> 20} MB; make it smaller")
    return [UploadedFile(name[:200], data)]


def read_zip(file: BinaryIO, limits: Limits) -> Iterator[UploadedFile]:
    """Yield the files of a zip file. Nothing is written, and names in the archive are never used as paths.

    A folder of the archive is a class. If all files are in one folder that has sub-folders, these are the classes.

    Raises:
        UserError: If the archive is damaged or encrypted, a name leads outside of it, or it exceeds a limit.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            entries = [entry for entry in archive.infolist() if not entry.is_dir()]
            if len(entries) > limits.files:
                raise UserError(f"the zip file has {len(entries)} files; at most {limits.files} are allowed")
            paths = [_checked_path(entry.filename) for entry in entries]
            if sum(entry.file_size for entry in entries) > limits.zip_bytes:
                raise UserError(f"the zip file is larger than {limits.zip_bytes >> 20} MB when unpacked; split it")
            used = [(path, entry) for path, entry in zip(paths, entries, strict=True) if not _is_ignored(path)]
            depth = _class_depth([path for path, _ in used])
            total = 0
            for path, entry in used:
                data = _read_entry(archive, entry, limits)
                total += len(data)
                if total > limits.zip_bytes:  # the declared sizes may be wrong
                    raise UserError(f"the zip file is larger than {limits.zip_bytes >> 20} MB when unpacked; split it")
                folder = path.parts[depth] if len(path.parts) > depth + 1 else None
                yield UploadedFile(path.name[:200], data, folder)
    except UserError:
        raise
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, OSError, EOFError, ValueError) as error:
        raise UserError(f"the zip file cannot be read ({str(error)[:100]}); make it again") from None
    except Exception as error:  # decompressors raise exceptions of their own for damaged data
        raise UserError(f"the zip file is damaged ({type(error).__name__}); make it again") from None


def _checked_path(name: str) -> PurePosixPath:
    """Return the path of an entry; a path that leads outside of the archive is refused."""
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or ":" in (path.parts or ("",))[0] or "\0" in name:
        raise UserError(f"the zip file contains the unsafe path {name[:100]!r}; nothing was added")
    return path


def _is_ignored(path: PurePosixPath) -> bool:
    return any(part.startswith(".") or part.lower() in IGNORED_NAMES for part in path.parts)


def _class_depth(paths: list[PurePosixPath]) -> int:
    """Return how many outer folders contain everything; the folders below them name the classes."""
    common = {path.parts[0] for path in paths if len(path.parts) > 1}
    has_classes = any(len(path.parts) > 2 for path in paths)
    return 1 if len(common) == 1 and has_classes and all(len(path.parts) > 1 for path in paths) else 0


def _read_entry(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, limits: Limits) -> bytes:
    """Read an entry; at most one byte more than allowed is decompressed, whatever size the entry declares."""
    with archive.open(entry) as file:
        data = file.read(limits.file_bytes + 1)
    if len(data) > limits.file_bytes:
        name = PurePosixPath(entry.filename).name[:100]
        raise UserError(f"{name} in the zip file is larger than {limits.file_bytes >> 20} MB; make it smaller")
    return data
