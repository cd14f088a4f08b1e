"""A disk that loses what was not flushed, and one on which chosen operations fail.

`watch` records the file operations of this process below a folder. `SimulatedDisk` repeats them in memory and builds
the folders that a power failure can leave behind. It follows POSIX, which promises little: the content of a file
survives when the file was flushed, and a name in a folder survives when the folder was flushed.
"""

from __future__ import annotations

import io
import os
import random
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest

Tree = dict[str, bytes | None]  # content of each file by relative path; None for a folder


class Operation(NamedTuple):
    """An operation on a file or a folder, by its path relative to the watched folder."""

    kind: str  # create, write, fsync, rename, unlink, link, mkdir or rmdir
    path: str
    target: str = ""  # new name of a renamed file, or the existing file of a link
    offset: int = 0
    data: bytes = b""

    @property
    def group(self) -> tuple[str, str]:
        """The kind and the path without numbers, random parts and class names: the same for equivalent operations."""
        return self.kind, re.sub(r"[0-9a-f]{16}|\d+|(?<=/memory/)\w+", "#", self.path)


@contextmanager
def watch(
    root: Path, monkeypatch: pytest.MonkeyPatch, before: Callable[[Operation], None] = lambda operation: None
) -> Iterator[list[Operation]]:
    """Yield a list that grows by every successful operation below `root`; `before` may raise an error instead."""
    watcher = _Watcher(root, before)
    with monkeypatch.context() as patch:
        for name, function in watcher.functions().items():
            patch.setattr(os, name, function)
        yield watcher.log


class _Watcher:
    """Replacements for functions of `os`."""

    def __init__(self, root: Path, before: Callable[[Operation], None]) -> None:
        self.root, self.before = os.path.realpath(root), before
        self.log: list[Operation] = []
        self.paths: dict[int, str] = {}  # of open files and folders
        self.real_open, self.real_fdopen, self.real_fsync = os.open, os.fdopen, os.fsync

    def functions(self) -> dict[str, Callable[..., Any]]:
        one_path = {name: self._on_path(getattr(os, name), kind) for name, kind in _ONE_PATH.items()}
        two_paths = {name: self._on_two_paths(getattr(os, name), kind) for name, kind in _TWO_PATHS.items()}
        return {**one_path, **two_paths, "open": self.open, "fdopen": self.fdopen, "fsync": self.fsync}

    def relative(self, path: Any, folder: int | None = None) -> str | None:
        """Path relative to the root; None if it is elsewhere."""
        if folder is not None:
            path = os.path.join(self.root, self.paths.get(folder, os.pardir), path)
        parent, name = os.path.split(os.path.abspath(os.fspath(path)))
        relative = os.path.relpath(os.path.join(os.path.realpath(parent), name), self.root)
        return None if relative.split(os.sep)[0] == os.pardir else relative

    def perform(self, operation: Operation, action: Callable[[], Any]) -> Any:
        self.before(operation)
        result = action()
        self.log.append(operation)
        return result

    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        def action() -> int:
            return self.real_open(path, flags, mode, dir_fd=dir_fd)

        name = self.relative(path, dir_fd)
        is_new = name is not None and flags & os.O_CREAT and not os.path.lexists(os.path.join(self.root, name))
        handle = self.perform(Operation("create", str(name)), action) if is_new else action()
        self.paths.pop(handle, None)
        if name is not None:
            self.paths[handle] = name
        return int(handle)

    def fsync(self, handle: int) -> None:
        name = self.paths.get(handle)
        if name is None:
            self.real_fsync(handle)
        else:
            self.perform(Operation("fsync", name), lambda: self.real_fsync(handle))

    def fdopen(self, handle: int, mode: str = "r", *args: Any, **options: Any) -> Any:
        name = self.paths.get(handle)
        if name is None or mode not in ("wb", "ab"):
            return self.real_fdopen(handle, mode, *args, **options)
        watcher = self

        class WatchedFile(io.FileIO):
            def write(self, data: Any) -> int:
                position = os.fstat(handle).st_size if mode == "ab" else self.tell()
                operation = Operation("write", str(name), offset=position, data=bytes(data))
                return int(watcher.perform(operation, lambda: super(WatchedFile, self).write(data)))

        return io.BufferedWriter(WatchedFile(handle, mode))

    def _on_path(self, real: Callable[..., Any], kind: str) -> Callable[..., Any]:
        def call(path: Any, *args: Any, dir_fd: int | None = None, **options: Any) -> Any:
            name = self.relative(path, dir_fd)
            if name is None:
                return real(path, *args, dir_fd=dir_fd, **options)
            return self.perform(Operation(kind, name), lambda: real(path, *args, dir_fd=dir_fd, **options))

        return call

    def _on_two_paths(self, real: Callable[..., Any], kind: str) -> Callable[..., Any]:
        def call(source: Any, target: Any, **options: Any) -> Any:
            names = self.relative(source), self.relative(target)
            if names[0] is None or names[1] is None:
                return real(source, target, **options)
            operation = Operation(kind, *(names if kind == "rename" else names[::-1]))
            return self.perform(operation, lambda: real(source, target, **options))

        return call


_ONE_PATH = {"mkdir": "mkdir", "rmdir": "rmdir", "unlink": "unlink", "remove": "unlink"}
_TWO_PATHS = {"rename": "rename", "replace": "rename", "link": "link"}


@dataclass
class _File:
    data: bytes = b""
    flushed: bytes = b""


@dataclass
class _Folder:
    entries: dict[str, _File | _Folder] = field(default_factory=dict)
    flushed: dict[str, _File | _Folder] = field(default_factory=dict)
    changes: list[_Change] = field(default_factory=list)  # since the last flush


class _Change(NamedTuple):
    """A change of a folder's entries: `name` is added, or removed if there is no node, and `removed` disappears."""

    name: str
    node: _File | _Folder | None
    removed: str | None = None

    def apply(self, entries: dict[str, _File | _Folder]) -> None:
        if self.removed is not None:
            entries.pop(self.removed, None)
        if self.node is None:
            entries.pop(self.name, None)
        else:
            entries[self.name] = self.node


class SimulatedDisk:
    """The content of a folder, and which part of it is flushed.

    Args:
        tree: The initial content, which is flushed.
    """

    def __init__(self, tree: Tree) -> None:
        self.root = _Folder()
        for path, content in sorted(tree.items()):
            parent, name = self._locate(path)
            parent.entries[name] = _Folder() if content is None else _File(content, content)
        for folder in _folders(self.root):
            folder.flushed = dict(folder.entries)

    def apply(self, operation: Operation) -> None:
        """Perform an operation."""
        kind, path, target = operation.kind, operation.path, operation.target
        if kind == "fsync":
            self._flush(self._node(path))
        elif kind == "write":
            file = self._node(path)
            assert isinstance(file, _File)
            start = file.data[: operation.offset].ljust(operation.offset, b"\0")
            file.data = start + operation.data + file.data[operation.offset + len(operation.data) :]
        else:
            self._change(kind, path, target)

    def _change(self, kind: str, path: str, target: str) -> None:
        parent, name = self._locate(path)
        if kind == "rename":
            other, new_name = self._locate(target)
            assert other is parent, "a rename between folders is not simulated"
            change = _Change(new_name, parent.entries[name], removed=name)
        elif kind in ("unlink", "rmdir"):
            change = _Change(name, None)
        elif kind == "link":
            change = _Change(name, self._node(target))
        else:
            change = _Change(name, _Folder() if kind == "mkdir" else _File())
        change.apply(parent.entries)
        parent.changes.append(change)

    def present(self) -> Tree:
        """The content as a running process sees it."""
        return dict(_walk(self.root, lambda folder: folder.entries, lambda file: file.data))

    def after_power_failure(self, *, names_survive: bool) -> Tree:
        """What is left if no unflushed data survive; unflushed names survive only with `names_survive`."""
        chosen = (lambda folder: folder.entries) if names_survive else (lambda folder: folder.flushed)
        return dict(_walk(self.root, chosen, lambda file: file.flushed))

    def after_random_failure(self, rng: random.Random) -> Tree:
        """What is left if each unflushed change of a name survives with probability 1/2, and unflushed data in part."""

        def entries(folder: _Folder) -> dict[str, _File | _Folder]:
            out = dict(folder.flushed)
            for change in folder.changes:
                if rng.random() < 0.5:
                    change.apply(out)
            return out

        def content(file: _File) -> bytes:
            appended = file.data.startswith(file.flushed)
            return file.data[: rng.randint(len(file.flushed) if appended else 0, len(file.data))]

        return dict(_walk(self.root, entries, content))

    def _flush(self, node: _File | _Folder) -> None:
        if isinstance(node, _File):
            node.flushed = node.data
        else:
            node.flushed, node.changes = dict(node.entries), []

    def _locate(self, path: str) -> tuple[_Folder, str]:
        parent, name = os.path.split(path)
        folder = self._node(parent)
        assert isinstance(folder, _Folder)
        return folder, name

    def _node(self, path: str) -> _File | _Folder:
        node: _File | _Folder = self.root
        for part in Path(path).parts:
            assert isinstance(node, _Folder)
            node = node.entries[part]
        return node


def _folders(folder: _Folder) -> Iterator[_Folder]:
    yield folder
    for node in folder.entries.values():
        if isinstance(node, _Folder):
            yield from _folders(node)


def _walk(
    folder: _Folder,
    entries: Callable[[_Folder], dict[str, _File | _Folder]],
    content: Callable[[_File], bytes],
    prefix: str = "",
) -> Iterable[tuple[str, bytes | None]]:
    for name, node in sorted(entries(folder).items()):
        yield prefix + name, None if isinstance(node, _Folder) else content(node)
        if isinstance(node, _Folder):
            yield from _walk(node, entries, content, f"{prefix}{name}/")


def read_tree(root: Path) -> Tree:
    """The content of a folder."""
    return {
        path.relative_to(root).as_posix(): None if path.is_dir() else path.read_bytes()
        for path in sorted(root.rglob("*"))
    }


def write_tree(tree: Tree, root: Path) -> Path:
    """Write the content of a new folder."""
    root.mkdir(parents=True)
    for path, content in sorted(tree.items()):
        if content is None:
            (root / path).mkdir()
        else:
            (root / path).write_bytes(content)
    return root
