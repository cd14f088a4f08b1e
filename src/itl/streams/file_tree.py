"""A tree of files, whether it lies in a folder or in a zip that nobody needs to unpack."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections import defaultdict
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from itl.errors import UserError
from itl.streams.checked_files import cannot_read, md5_of, read_bytes


class FileTree(Protocol):
    """What a dataset needs of a tree; paths are relative and use '/'."""

    def list(self, folder: str) -> list[str]:
        """The names in a folder, in no particular order; none if there is no such folder."""
        ...

    def read(self, path: str) -> bytes:
        """The bytes of a file."""
        ...

    def text(self, path: str) -> str:
        """A file of text."""
        ...

    def name(self, path: str) -> str:
        """How to call a file when speaking to people."""
        ...


class _Base:
    """What folder and zip have in common."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def read(self, path: str) -> bytes:
        raise NotImplementedError

    def text(self, path: str) -> str:
        try:
            return self.read(path).decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(f"{self.name(path)} is not text; put the official file there") from error

    def name(self, path: str) -> str:
        return str(self.place / path)

    def __enter__(self) -> Any:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


class DirectoryTree(_Base):
    """A tree in a folder."""

    def list(self, folder: str) -> list[str]:
        """The names in a folder; none if there is no such folder."""
        try:
            return os.listdir(self.place / folder)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise cannot_read(self.place / folder, error) from error

    def read(self, path: str) -> bytes:
        """The bytes of a file."""
        return read_bytes(self.place / path)


class ZipTree(_Base):
    """A tree in a zip, below its folder `top`. Safe to read from several threads, as zipfile is."""

    def __init__(self, place: Path, top: str) -> None:
        super().__init__(place)
        self.top = top
        try:
            self.archive = zipfile.ZipFile(place)
        except (zipfile.BadZipFile, OSError) as error:
            raise UserError(f"{place} is truncated or damaged ({error}); delete it and fetch it again") from error
        self.folders: defaultdict[str, list[str]] = defaultdict(list)
        for path in self.archive.namelist():
            folder, _, name = path.rpartition("/")
            if name:
                self.folders[folder].append(name)

    def list(self, folder: str) -> list[str]:
        """The names of the files in a folder; none if there is no such folder."""
        return self.folders.get(f"{self.top}/{folder}", [])

    def read(self, path: str) -> bytes:
        """The bytes of a file."""
        try:
            return self.archive.read(f"{self.top}/{path}")
        except KeyError as error:
            raise UserError(f"{self.place} lacks {self.top}/{path}; delete it and fetch it again") from error
        except (zipfile.BadZipFile, OSError, EOFError, zlib.error) as error:
            raise UserError(f"{self.name(path)} is damaged ({error}); delete the zip and fetch it again") from error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.archive.close()


def fingerprint(place: Path, texts: list[str]) -> dict[str, Any]:
    """What tells one state of a dataset from another without reading it all; it fits in JSON.

    Of a zip its size and time. Of a folder the md5 of its small `texts`, and the number of files in folders called
    `images` and the newest change to one of them: files added, removed or renamed show, one rewritten in place
    does not.
    """
    try:
        if place.is_file():
            state = place.stat()
            return {"kind": "zip", "bytes": state.st_size, "changed": state.st_mtime_ns}
        folders = [place / "val" / "images", *sorted((place / "train").glob("*/images"))]
        files = sum(len(os.listdir(folder)) for folder in folders if folder.is_dir())
        newest = max((folder.stat().st_mtime_ns for folder in folders if folder.is_dir()), default=0)
        text = md5_of(b"".join(read_bytes(place / name) for name in texts))
        return {"kind": "folder", "files": files, "changed": newest, "texts": text}
    except OSError as error:
        raise cannot_read(place, error) from error
