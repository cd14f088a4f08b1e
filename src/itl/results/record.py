"""Reads and writes a run folder: config.json, metrics.jsonl, result.json, predictions.npz, pictures.npz, model/."""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from itl.atomic import append, atomic_write, make_folder, remove_leftovers, write_text_atomic
from itl.errors import UserError
from itl.locks import FileLock, acquire_lock
from itl.regular_files import MAX_BYTES, open_regular, read_regular
from itl.strict_json import parse_json, read_json

# 2 added lines of kind `start` and pictures.npz. Records of format 1 stay readable.
RECORD_FORMAT = 2

RECORD_FILES = ("config.json", "metrics.jsonl", "result.json", "predictions.npz", "pictures.npz")
_ZIP_START = b"PK"
_DAMAGE = (OSError, ValueError, KeyError, EOFError, MemoryError, RuntimeError, zipfile.BadZipFile, zlib.error)
MAX_LINES = 500_000  # of metrics
LOCK_FILE = ".lock"  # not config.json: a file that is replaced loses its lock
_NEVER_LINKS = (LOCK_FILE, "model", "specialists", "tensorboard")


@dataclass(frozen=True)
class _Claim:
    """The lock of a run folder (None on a file system without locks), and the folders that were created for it."""

    lock: FileLock | None
    created: tuple[Path, ...]  # innermost first

    def release(self, path: Path) -> None:
        """Release the lock, and remove the folders if nothing was written to them."""
        with suppress(OSError):
            if self.created and set(os.listdir(path)) <= {LOCK_FILE}:
                (path / LOCK_FILE).unlink(missing_ok=True)
                for folder in self.created:
                    folder.rmdir()
        if self.lock is not None:
            self.lock.release()


_reserved: dict[Path, _Claim] = {}


def release_reserved_folders() -> None:
    """Release the run folders that were reserved but never locked."""
    for path in list(_reserved):
        RunFolder(path).cancel_reservation()


class RunFolder:
    """The files of one run. JSON and array files are replaced atomically, so a reader never sees half a file."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    @property
    def model(self) -> Path:
        """Folder of the saved learner."""
        return self.path / "model"

    def specialist(self, task: int) -> Path:
        """Folder of the specialist of a task (from 1), kept for `itl refine`."""
        return self.path / "specialists" / f"task-{task:02d}"

    def create(self, config: dict[str, Any]) -> None:
        """Create the folder of a new run and write config.json; an existing run is never overwritten."""
        if (self.path / "config.json").exists():
            raise UserError(
                f"{self.path} already contains a run. Choose another --out, or add --resume to continue it."
            )
        try:
            make_folder(self.path)
            self.write("config.json", config)
        except OSError as error:
            raise UserError(f"cannot write to {self.path}: {error.strerror or error}; choose another --out") from error

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other processes from writing to this run, and remove what killed ones left behind.

        The folder is created if it does not exist, and removed at the end if it is still empty. On a file system
        without locks the run continues unlocked.
        """
        if self.path.resolve() not in _reserved and not self.reserve():
            raise UserError(f"another process is writing to {self.path}; wait until it has finished")
        claim = _reserved.pop(self.path.resolve())
        try:
            if claim.lock is not None:
                remove_leftovers(self.path, RECORD_FILES)
            yield
        finally:
            claim.release(self.path)

    def reserve(self) -> bool:
        """Lock the folder for a later `lock` of this process; return False if it is already locked or reserved.

        Raises:
            UserError: The folder cannot be created, or the lock or a folder in it is a link.
        """
        if self.path.resolve() in _reserved:
            return False
        for path in (*(self.path / name for name in _NEVER_LINKS), *self.path.glob("specialists/*")):
            if path.is_symlink():  # a run would write into another folder, and remove older states there
                raise UserError(f"{path} is a link; replace it with the folder or file itself")
        created = tuple(folder for folder in (self.path, *self.path.parents) if not folder.exists())
        try:
            make_folder(self.path)
        except OSError as error:
            raise UserError(f"cannot write to {self.path}: {error.strerror or error}; choose another --out") from error
        try:
            lock = acquire_lock(self.path / LOCK_FILE)
        except OSError:
            lock = None
        else:
            if lock is None:
                return False
        _reserved[self.path.resolve()] = _Claim(lock, created)
        return True

    def cancel_reservation(self) -> None:
        """Undo `reserve`."""
        if (claim := _reserved.pop(self.path.resolve(), None)) is not None:
            claim.release(self.path)

    def read(self, name: str) -> Any:
        """The content of a JSON file."""
        try:
            return read_json(self.path / name)
        except FileNotFoundError:
            raise UserError(f"{self.path} has no {name}; is it a run folder?") from None
        except (OSError, ValueError) as error:
            raise UserError(f"{self.path / name} cannot be read: {_reason(error)}") from None

    def write(self, name: str, value: Any) -> None:
        """Write a JSON file."""
        write_text_atomic(self.path / name, json.dumps(value, indent=1) + "\n")

    def read_lines(self, count: int | None = None) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl, or its first `count`; a last line that a crash cut short is skipped."""
        path = self.path / "metrics.jsonl"
        try:
            lines = split_lines(read_regular(path))[:count] if path.exists() else []
        except (OSError, ValueError) as error:
            raise UserError(f"{path} cannot be read: {_reason(error)}; run it again") from None
        out: list[dict[str, Any]] = []
        for number, line in enumerate(lines, 1):
            try:
                value = parse_json(line)
                if not isinstance(value, dict):
                    raise ValueError("it is not an object")
                out.append(value)
            except ValueError:
                if number < len(lines):
                    raise UserError(f"{path}, line {number}, is damaged; run it again") from None
        return out

    def truncate_lines(self, count: int) -> list[dict[str, Any]]:
        """Cut metrics.jsonl back to the first `count` lines, those the saved state includes, and return them."""
        lines = self.read_lines(count)
        if len(lines) < count:
            path = self.path / "metrics.jsonl"
            raise UserError(f"{path} has {len(lines)} lines, but the saved state includes {count}; run it again")
        self.replace_lines(lines)
        return lines

    def replace_lines(self, lines: Sequence[dict[str, Any]]) -> None:
        """Write metrics.jsonl."""
        write_text_atomic(self.path / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines))

    def append(self, line: dict[str, Any]) -> None:
        """Append a line to metrics.jsonl and flush it to disk, before a state that includes it is saved."""
        append(self.path / "metrics.jsonl", (json.dumps(line) + "\n").encode("utf-8"))

    def write_arrays(self, name: str, **arrays: np.ndarray) -> None:
        """Write an .npz file."""
        with atomic_write(self.path / name) as file:
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]

    def read_arrays(self, name: str) -> dict[str, np.ndarray] | None:
        """The arrays of an .npz file; None if there is no such file."""
        return load_arrays(self.path / name) if (self.path / name).exists() else None


def split_lines(data: bytes) -> list[bytes]:
    """The lines of a file such as metrics.jsonl.

    Raises:
        ValueError: It has more lines than any experiment; parsing them would take long.
    """
    if data.count(b"\n") > MAX_LINES:
        raise ValueError(f"it has more than {MAX_LINES:,} lines")
    return data.removesuffix(b"\n").split(b"\n") if data else []


def is_run(path: Path) -> bool:
    """Whether a folder looks like a run folder (it may still be damaged)."""
    return (path / "config.json").is_file() or (path / "result.json").is_file()


def load_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file."""
    with damage_as_user_error(path), open_regular(path) as file, open_arrays(file) as arrays:
        return {key: read_array(arrays, key) for key in arrays.files}


def read_array(arrays: Any, name: str) -> np.ndarray:
    """One array of an opened .npz file.

    Raises:
        ValueError: The file has something else of this name.
    """
    array = arrays[name]
    if not isinstance(array, np.ndarray):  # NumPy returns the bytes of a member that is no .npy file
        raise ValueError(f"'{name}' is not an array")
    return array


def open_arrays(file: BinaryIO) -> Any:
    """The opened .npz file, whose arrays have a reasonable size.

    Raises:
        ValueError: It is another kind of file, or its arrays are too large.
    """
    start = file.read(len(_ZIP_START))
    file.seek(0)
    if start != _ZIP_START:
        raise ValueError("it is not an .npz file")
    arrays = np.load(file, allow_pickle=False)
    if sum(member.file_size for member in arrays.zip.infolist()) > MAX_BYTES:  # a small file can inflate to any size
        raise ValueError(f"it has more than {MAX_BYTES >> 20} MiB of arrays")
    return arrays


@contextmanager
def damage_as_user_error(path: Path) -> Iterator[None]:
    """Turn the errors of reading an .npz file into a `UserError`."""
    try:
        yield
    except _DAMAGE as error:
        raise UserError(f"{path} is damaged: {_reason(error)}; run it again") from None


def _reason(error: Exception) -> object:
    return getattr(error, "strerror", None) or error


def scores_from_predictions(arrays: Mapping[str, np.ndarray]) -> dict[str, list[float]]:
    """Class-IL and Task-IL accuracies per task, in percent, from the arrays of predictions.npz."""
    tasks = [arrays["task"] == task for task in np.unique(arrays["task"])]
    return {
        name: [100 * float((arrays[name] == arrays["label"])[rows].mean()) for rows in tasks]
        for name in ("class_il", "task_il")
    }


def stage_scores(lines: list[dict[str, Any]], task: int) -> dict[str, dict[str, float]]:
    """Class-IL and Task-IL at the end of each stage of a task (from 1), by stage name, from a run's lines."""
    return {
        line["stage"]: {"class_il": line["class_il"], "task_il": line["task_il"]}
        for line in lines
        if line["task"] == task and line["kind"] in ("end", "expert") and line["stage"] != "projection"
    }
