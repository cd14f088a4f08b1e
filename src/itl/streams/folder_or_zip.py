"""Read-only access to a tree of files in a folder or in a zip file."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections import defaultdict
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from itl.errors import UserError
from itl.streams.checked_files import md5_of, read_bytes, read_error


class FileTree(AbstractContextManager["FileTree"]):
    """A tree of files; paths are relative and use '/'."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def list(self, folder: str) -> list[str]:
        """Names in a folder, in any order; empty if there is no such folder."""
        raise NotImplementedError

    def read(self, path: str) -> bytes:
        """Content of a file."""
        raise NotImplementedError

    def text(self, path: str) -> str:
        """Content of a text file."""
        try:
            return self.read(path).decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(f"{self.name(path)} is not text; put the official file there") from error

    def name(self, path: str) -> str:
        """Name of a file for error messages."""
        return str(self.root / path)

    def __exit__(self, *exception: object) -> None:
        pass


class DirectoryTree(FileTree):
    """A tree in a folder."""

    def list(self, folder: str) -> list[str]:
        """Names in a folder; empty if there is no such folder."""
        try:
            return os.listdir(self.root / folder)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise read_error(self.root / folder, error) from error

    def read(self, path: str) -> bytes:
        """Content of a file."""
        return read_bytes(self.root / path)


class ZipTree(FileTree):
    """A tree in a zip file, below its folder `top`. Several threads may read at once, as with zipfile."""

    def __init__(self, root: Path, top: str) -> None:
        super().__init__(root)
        self.top = top
        try:
            self.archive = zipfile.ZipFile(root)
        except (zipfile.BadZipFile, OSError) as error:
            raise UserError(f"{root} is truncated or damaged ({error}); delete it and download it again") from error
        self.folders: defaultdict[str, list[str]] = defaultdict(list)
        for path in self.archive.namelist():
            folder, _, name = path.rpartition("/")
            if name:
                self.folders[folder].append(name)

    def list(self, folder: str) -> list[str]:
        """Names of the files in a folder; empty if there is no such folder."""
        return self.folders.get(f"{self.top}/{folder}", [])

    def read(self, path: str) -> bytes:
        """Content of a file."""
        try:
            return self.archive.read(f"{self.top}/{path}")
        except KeyError as error:
            raise UserError(f"{self.root} lacks {self.top}/{path}; delete it and download it again") from error
        except (zipfile.BadZipFile, OSError, EOFError, zlib.error, RuntimeError) as error:
            # RuntimeError: the file is encrypted, or compressed by an unknown method.
            raise UserError(
                f"{self.name(path)} is damaged ({error}); delete the zip file and download it again"
            ) from error

    def __exit__(self, *exception: object) -> None:
        self.archive.close()


def fingerprint(root: Path, texts: list[str]) -> dict[str, Any]:
    """JSON value that identifies the state of a dataset without reading all of it.

    For a zip file: its size and modification time. For a folder: the md5 of the small files `texts`, the number of
    files in folders called `images`, and the newest modification time of these folders. Files that were added, removed
    or renamed change the fingerprint; a file that was rewritten in place does not.
    """
    try:
        if root.is_file():
            state = root.stat()
            return {"kind": "zip", "bytes": state.st_size, "changed": state.st_mtime_ns}
        folders = [root / "val" / "images", *sorted((root / "train").glob("*/images"))]
        files = sum(len(os.listdir(folder)) for folder in folders if folder.is_dir())
        newest = max((folder.stat().st_mtime_ns for folder in folders if folder.is_dir()), default=0)
        text = md5_of(b"".join(read_bytes(root / name) for name in texts))
        return {"kind": "folder", "files": files, "changed": newest, "texts": text}
    except OSError as error:
        raise read_error(root, error) from error
