"""Model folders: numbered generations, and one atomically replaced file that names the current one. No pickle.

A generation holds `tensors.safetensors`, `state.json`, any further files of its owner, and `SHA256SUMS` with the
checksums of all of them (`sha256sum -c` can check it). It is written completely under a temporary name and then
renamed. Then the file `CURRENT`, which holds its name and the checksum of its `SHA256SUMS`, is replaced. A crash at any
moment leaves either the old state or the new one.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from itl.atomic import flush_to_disk, write_text_atomic
from itl.errors import UserError

FORMAT_VERSION = 2
CURRENT, TENSORS, STATE, CHECKSUMS = "CURRENT", "tensors.safetensors", "state.json", "SHA256SUMS"
GENERATION_NAME = re.compile(r"generation-([0-9]{6,12})")
MAX_TEXT_BYTES = 64 << 20  # a larger state.json or SHA256SUMS was not written by itl
TRANSIENT_ERRORS = (errno.EMFILE, errno.ENFILE, errno.ESTALE, errno.ENOMEM)  # they do not mean that a file is damaged
MAX_READ_ATTEMPTS = 5  # another process may replace the generation during each of them
BUSY = "{} is replaced by another process faster than it can be read; try again later"


class TemporarilyUnreadable(UserError):
    """A folder that this process cannot read now, but that may be intact."""


class UnsupportedVersion(UserError):
    """A state that was written in the format of another version of itl."""


def write(
    folder: str | os.PathLike[str],
    tensors: dict[str, Tensor],
    state: dict[str, Any],
    *,
    add_files: Callable[[Path], None] | None = None,
    keep: Collection[str] = (),
) -> Path:
    """Write a new generation into `folder`, make it the current one, and remove the older ones.

    Args:
        folder: The model folder; it is created if it does not exist.
        tensors: Content of `tensors.safetensors`.
        state: Content of `state.json`.
        add_files: Called with the path of the unfinished generation, to write further files into it.
        keep: Names of older generations to keep.

    Returns:
        Path of the new generation.

    Raises:
        UserError: The folder cannot be written. Its content is unchanged.
    """
    root = Path(folder)
    draft: Path | None = None
    try:
        root.mkdir(parents=True, exist_ok=True)
        number = max((generation_number(p.name) for p in root.glob("generation-*")), default=0) + 1
        draft = root / f".draft-{number:06d}"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        save_file({name: t.detach().cpu().contiguous() for name, t in tensors.items()}, draft / TENSORS)
        (draft / STATE).write_text(json.dumps({"format": FORMAT_VERSION, **state}, indent=1), encoding="utf-8")
        if add_files is not None:
            add_files(draft)
        write_checksums(draft)
        target = root / f"generation-{number:06d}"
        draft.rename(target)
        flush_to_disk(root)
        set_current(root, target.name)
    except (OSError, SafetensorError) as error:
        if draft is not None:
            shutil.rmtree(draft, ignore_errors=True)  # free the space if the disk is full
        raise UserError(
            f"cannot write the model folder {root}: {error_summary(error)}; its content is unchanged"
        ) from error
    remove_generations(root, keep={target.name, *keep})
    return target


def write_checksums(generation: Path) -> None:
    """Write `SHA256SUMS` over all files of a generation and flush everything to disk."""
    files = sorted(p for p in generation.rglob("*") if p.is_file() and p.name != CHECKSUMS)
    lines = [f"{_sha256(path)}  {path.relative_to(generation).as_posix()}\n" for path in files]
    (generation / CHECKSUMS).write_text("".join(lines), encoding="utf-8")
    for path in (*files, generation / CHECKSUMS, *(p for p in generation.rglob("*") if p.is_dir()), generation):
        flush_to_disk(path)


def set_current(root: Path, name: str) -> None:
    """Make a generation the current one, atomically."""
    write_text_atomic(root / CURRENT, f"{name}\n{_sha256(root / name / CHECKSUMS)}\n")


def remove_generations(root: Path, keep: Collection[str]) -> None:
    """Remove all generations and drafts except those named in `keep`."""
    for path in (*root.glob("generation-*"), *root.glob(".draft-*")):
        if path.name not in keep:
            shutil.rmtree(path, ignore_errors=True)
    for path in root.glob(f".{CURRENT}.*.tmp"):  # left by processes that were killed
        path.unlink(missing_ok=True)


def generations(folder: str | os.PathLike[str]) -> list[str]:
    """Names of all generations in a folder, oldest first."""
    names = (path.name for path in Path(folder).glob("generation-*"))
    return sorted((name for name in names if GENERATION_NAME.fullmatch(name)), key=generation_number)


def current(folder: str | os.PathLike[str]) -> str:
    """Name of the current generation, whose `SHA256SUMS` is verified.

    Raises:
        UserError: The folder is not a model folder, is damaged or cannot be read.
    """
    root = Path(folder)
    try:
        for _ in range(MAX_READ_ATTEMPTS):
            text = _read_text(root / CURRENT)
            name, _, digest = text.strip().partition("\n")
            if not GENERATION_NAME.fullmatch(name):
                raise UserError(f"{root / CURRENT} does not name a generation; this is not a model folder of itl")
            checksums = root / name / CHECKSUMS
            if checksums.exists() and _check_regular(checksums, root) and _sha256(checksums) == digest:
                return name
            if _read_text(root / CURRENT) == text:  # otherwise another process has just replaced it
                problem = "is damaged or was replaced" if checksums.exists() else "is missing"
                raise UserError(
                    f"{root} is not a complete model folder of itl: {name}/{CHECKSUMS} {problem}; "
                    "restore it from a copy"
                )
    except FileNotFoundError as error:
        raise _missing_file(root, error) from None
    except (OSError, ValueError) as error:
        raise read_error(root, error) from None
    raise UserError(BUSY.format(root))


def current_unchecked(folder: str | os.PathLike[str]) -> str | None:
    """Name of the generation in `CURRENT`, intact or not; None if there is none."""
    try:
        name = _read_text(Path(folder) / CURRENT).partition("\n")[0].strip()
    except (OSError, ValueError, UserError):
        return None
    return name if GENERATION_NAME.fullmatch(name) else None


def remove(root: Path) -> None:
    """Remove all generations of a model folder; other files in it stay."""
    (root / CURRENT).unlink()  # first, so that an interruption leaves no model folder
    remove_generations(root, keep=())


def read(folder: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the current generation; if it is replaced meanwhile, read the new one.

    Returns:
        The tensors and the content of `state.json`, checked against the checksums.

    Raises:
        UserError: The folder is not a model folder, is damaged or cannot be read.
    """
    for _ in range(MAX_READ_ATTEMPTS):
        name = current(folder)
        try:
            return read_generation(Path(folder), name)
        except UserError:
            if current(folder) == name:
                raise
    raise UserError(BUSY.format(folder))


def read_generation(root: Path, name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and state of a generation. All checksums are verified before a tensor is loaded.

    Raises:
        UserError: A file is missing, damaged or of another format version, or cannot be read.
    """
    generation = root / name
    try:
        checksums = read_checksums(generation)
        state = json.loads(_read_text(generation / STATE))
        if not isinstance(state, dict) or type(state.get("format")) is not int or state["format"] != FORMAT_VERSION:
            other_version = isinstance(state, dict) and type(state.get("format")) is int
            message = f"{generation / STATE} has another format version; this itl reads version {FORMAT_VERSION}"
            raise UnsupportedVersion(message) if other_version else UserError(message)
        for file, digest in checksums.items():
            path = generation / file
            _check_regular(path, root)
            if _sha256(path) != digest:
                raise UserError(f"{path} is damaged (its checksum differs); restore it from a copy")
        return load_file(generation / TENSORS), state
    except FileNotFoundError as error:
        raise _missing_file(root, error) from None
    except (OSError, ValueError, RecursionError, MemoryError, SafetensorError) as error:
        raise read_error(root, error) from None


def read_error(root: Path, error: BaseException) -> UserError:
    """Error for a folder that could not be read: `TemporarilyUnreadable` if the folder itself may be intact."""
    transient = isinstance(error, PermissionError) or (isinstance(error, OSError) and error.errno in TRANSIENT_ERRORS)
    kind = TemporarilyUnreadable if transient else UserError
    return kind(f"cannot read the model folder {root}: {error_summary(error)}")


def read_state_unchecked(generation: Path) -> dict[str, Any]:
    """Content of a generation's `state.json`, without verification; empty if it cannot be read."""
    try:
        state = json.loads(_read_text(generation / STATE))
    except (OSError, ValueError, RecursionError):
        return {}
    return state if isinstance(state, dict) else {}


def read_checksums(generation: Path) -> dict[str, str]:
    """Checksum of each file listed in `SHA256SUMS`, by its path relative to the generation.

    Raises:
        UserError: A line is malformed, or a path leads out of the generation.
        FileNotFoundError: The tensors or the state are not listed.
    """
    checksums: dict[str, str] = {}
    for line in _read_text(generation / CHECKSUMS).splitlines():
        digest, gap, name = line.partition("  ")
        parts = name.split("/")
        if not gap or not re.fullmatch("[0-9a-f]{64}", digest) or name in checksums or {"", ".", ".."} & set(parts):
            raise UserError(f"{generation / CHECKSUMS} is damaged; restore it from a copy")
        checksums[name] = digest
    for name in (TENSORS, STATE):
        if name not in checksums:
            missing = generation / (name if not (generation / name).exists() else CHECKSUMS)
            raise FileNotFoundError(errno.ENOENT, "missing", str(missing))
    return checksums


def generation_number(name: str) -> int:
    """Number of a generation from its name; 0 for a name of another form."""
    digits = name.rpartition("-")[2]
    return int(digits) if digits.isdigit() else 0


def error_summary(error: BaseException) -> str:
    """First line of an error's message; its type if it has no message."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
    return text.splitlines()[0]


def _missing_file(root: Path, error: FileNotFoundError) -> UserError:
    return UserError(f"{root} is not a model folder of itl: {Path(str(error.filename)).name} is missing")


def _check_regular(path: Path, root: Path) -> bool:
    """Reject links, which could lead out of the folder, and devices, which may never end."""
    while path != root:
        mode = path.lstat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise _not_regular(path)
        path = path.parent
    return True


def _read_text(path: Path) -> str:
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        raise _not_regular(path)
    if status.st_size > MAX_TEXT_BYTES:
        raise UserError(f"{path} has {status.st_size >> 20} MiB; this is not a model folder of itl")
    return path.read_text(encoding="utf-8")


def _not_regular(path: Path) -> UserError:
    return UserError(f"{path} is not a regular file; a model folder contains only regular files and folders")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
