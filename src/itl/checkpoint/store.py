"""Model folders: numbered generations, and one atomically replaced file that names the current one. No pickle.

A generation holds `tensors.safetensors`, `state.json`, any further files of its owner, and `SHA256SUMS` with the
checksums of all of them (`sha256sum -c` can check it). It is written completely under a temporary name and then
renamed. Then the file `CURRENT`, which holds its name and the checksum of its `SHA256SUMS`, is replaced. A crash at any
moment leaves either the old state or the new one.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor

from itl.atomic import create_file, flush_to_disk, make_folder, overwrite, write_text_atomic
from itl.checkpoint.checksums import (
    CHECKSUMS,
    MAX_TEXT_BYTES,
    STATE,
    TENSORS,
    FileEntry,
    check_regular,
    is_listed_but_for_a_byte,
    read_checksums,
    read_regular_text,
    readable_entries,
    sha256,
    verify_file,
    write_checksums,
)
from itl.checkpoint.generation_list import (
    CURRENT,
    GENERATION_NAME,
    LIST_KEY,
    current_unchecked,
    generation_number,
    generations,
    new_draft,
    remove_generations,
)
from itl.errors import UserError
from itl.strict_json import parse_json

__all__ = [
    "BUSY",
    "CHECKSUMS",
    "CURRENT",
    "FORMAT_VERSION",
    "MAX_READ_ATTEMPTS",
    "SIZE_TO_CHECK",
    "STATE",
    "TENSORS",
    "FileEntry",
    "SizeLimit",
    "TemporarilyUnreadable",
    "TooLarge",
    "UnsupportedVersion",
    "current",
    "current_unchecked",
    "error_summary",
    "generation_number",
    "generations",
    "is_disk_full",
    "is_intact",
    "is_transient",
    "read",
    "read_checksums",
    "read_error",
    "read_generation",
    "read_state_unchecked",
    "remove",
    "remove_generations",
    "restore_current",
    "set_current",
    "set_current_on_full_disk",
    "verify_file",
    "write",
    "write_checksums",
]

FORMAT_VERSION = 2
TRANSIENT_ERRORS = (errno.EMFILE, errno.ENFILE, errno.ESTALE, errno.ENOMEM)  # they do not mean that a file is damaged
DISK_FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT)
SIZE_TO_CHECK = 4 << 30  # bytes; larger tensors are read only if the model's settings can need them
SizeLimit = Callable[[dict[str, Any]], float]  # from the content of `state.json` to bytes of tensors
MAX_READ_ATTEMPTS = 5  # another process may replace the generation during each of them
BUSY = "{} is replaced by another process faster than it can be read; try again later"


class TemporarilyUnreadable(UserError):
    """A folder that this process cannot read now, but that may be intact."""


class TooLarge(UserError):
    """A file that is larger than the model's settings explain."""


class UnsupportedVersion(UserError):
    """A state that was written in the format of another version of itl."""


def write(
    folder: str | os.PathLike[str],
    tensors: dict[str, Tensor],
    state: dict[str, Any],
    *,
    add_files: Callable[[Path], Mapping[str, FileEntry]] | None = None,
    keep: Collection[str] = (),
) -> Path:
    """Write a new generation into `folder`, make it the current one, and remove the older ones.

    Args:
        folder: The model folder; it is created if it does not exist.
        tensors: Content of `tensors.safetensors`.
        state: Content of `state.json`.
        add_files: Called with the path of the unfinished generation, to write further files into it. Returns the
            entries of files that it has linked.
        keep: Names of older generations to keep.

    Returns:
        Path of the new generation.

    Raises:
        UserError: The folder cannot be written. Its content is unchanged.
    """
    root = Path(folder)
    draft: Path | None = None
    name = ""
    try:
        make_folder(root)
        older = generations(root)
        draft, name, listed = new_draft(root, older)
        with create_file(draft / TENSORS) as file:
            file.write(save({key: t.detach().cpu().contiguous() for key, t in tensors.items()}))
        with create_file(draft / STATE) as file:
            content = {"format": FORMAT_VERSION, **state, LIST_KEY: listed}
            file.write(json.dumps(content, indent=1).encode("utf-8"))
        linked = {} if add_files is None else add_files(draft)
        write_checksums(draft, linked)
        draft.rename(root / name)
        flush_to_disk(root)
        set_current(root, name)
    except (OSError, SafetensorError) as error:
        if draft is not None:
            shutil.rmtree(draft, ignore_errors=True)  # free the space if the disk is full
        written = name and current_unchecked(root) == name
        if name and not written:
            remove_generations(root, [name])
        result = "the new state was saved, but a power failure may undo it" if written else "its content is unchanged"
        raise UserError(f"cannot write the model folder {root}: {error_summary(error)}; {result}") from error
    remove_generations(root, [other for other in older if other not in keep])
    return root / name


def set_current(root: Path, name: str) -> None:
    """Make a generation the current one, atomically."""
    write_text_atomic(root / CURRENT, _current_text(root, name))


def set_current_on_full_disk(root: Path, name: str) -> None:
    """Make a generation the current one without using space. If a crash interrupts it, `CURRENT` may be damaged."""
    size = (root / CURRENT).stat().st_size
    overwrite(root / CURRENT, _current_text(root, name).ljust(size).encode("utf-8"))


def _current_text(root: Path, name: str) -> str:
    return f"{name}\n{sha256(root / name / CHECKSUMS)}\n"


def is_disk_full(error: BaseException | None) -> bool:
    """Whether an error says that there is no space left."""
    return isinstance(error, OSError) and error.errno in DISK_FULL_ERRORS


def current(folder: str | os.PathLike[str]) -> str:
    """Name of the current generation, whose `SHA256SUMS` is verified.

    Raises:
        UserError: The folder is not a model folder, is damaged or cannot be read.
    """
    root = Path(folder)
    try:
        for _ in range(MAX_READ_ATTEMPTS):
            text = read_regular_text(root / CURRENT)
            name, _, digest = text.strip().partition("\n")
            if not GENERATION_NAME.fullmatch(name):
                raise UserError(f"{root / CURRENT} does not name a generation; this is not a model folder of itl")
            checksums = root / name / CHECKSUMS
            if checksums.exists() and check_regular(checksums, root) and sha256(checksums, MAX_TEXT_BYTES) == digest:
                return name
            if read_regular_text(root / CURRENT) == text:  # otherwise another process has just replaced it
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


def is_intact(root: Path, name: str, size_limit: SizeLimit | None = None) -> bool:
    """Whether the tensors and the state of a generation are intact, even if its `SHA256SUMS` or `CURRENT` is not.

    Args:
        root: The model folder.
        name: The generation.
        size_limit: As in `read_generation`.

    Raises:
        TemporarilyUnreadable: The files cannot be read now.
        UnsupportedVersion: The state was written by another version of itl.
    """
    try:
        read_generation(root, name, size_limit)
    except (TemporarilyUnreadable, UnsupportedVersion):
        raise
    except TooLarge:
        return False
    except UserError:
        generation = root / name
        try:
            regular = all(check_regular(generation / file, root) for file in (TENSORS, STATE, CHECKSUMS))
        except (OSError, UserError):
            return False
        return regular and all(is_listed_but_for_a_byte(generation, file) for file in (TENSORS, STATE))
    return True


def restore_current(root: Path, name: str) -> None:
    """Make an intact generation the current one and correct its `SHA256SUMS`, if that is damaged.

    Raises:
        OSError: The folder cannot be written.
    """
    try:
        read_generation(root, name)
    except UserError:
        known = {file: entry for file, entry in readable_entries(root / name).items() if file not in (TENSORS, STATE)}
        write_checksums(root / name, known)
    set_current(root, name)


def remove(root: Path) -> None:
    """Remove all generations of a model folder; other files in it stay."""
    names = generations(root)
    (root / CURRENT).unlink()  # first, so that an interruption leaves no model folder
    flush_to_disk(root)
    remove_generations(root, names)


def read(
    folder: str | os.PathLike[str], size_limit: SizeLimit | None = None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the current generation; if it is replaced meanwhile, read the new one.

    Args:
        folder: The model folder.
        size_limit: As in `read_generation`.

    Returns:
        The tensors and the content of `state.json`, checked against the checksums.

    Raises:
        UserError: The folder is not a model folder, is damaged or cannot be read.
    """
    for _ in range(MAX_READ_ATTEMPTS):
        name = current(folder)
        try:
            return read_generation(Path(folder), name, size_limit)
        except UserError:
            if current(folder) == name:
                raise
    raise UserError(BUSY.format(folder))


def read_generation(
    root: Path, name: str, size_limit: SizeLimit | None = None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and state of a generation. Both checksums are verified before a tensor is loaded.

    Further files are verified by their owner (`verify_file`): damage to one of them does not concern the weights.

    Args:
        root: The model folder.
        name: The generation.
        size_limit: Given the content of `state.json`, returns how many bytes its tensors can have. It is called for
            more than `SIZE_TO_CHECK` bytes only, before they are read. A folder of somebody else may contain matching
            checksums of anything.

    Raises:
        TooLarge: There are more bytes of tensors.
        UserError: A file is missing, damaged or of another format version, or cannot be read.
    """
    generation = root / name
    try:
        checksums = read_checksums(generation)
        state = parse_json(read_regular_text(generation / STATE))
        if not isinstance(state, dict) or type(state.get("format")) is not int or state["format"] != FORMAT_VERSION:
            other_version = isinstance(state, dict) and type(state.get("format")) is int
            message = f"{generation / STATE} has another format version; this itl reads version {FORMAT_VERSION}"
            raise UnsupportedVersion(message) if other_version else UserError(message)
        verify_file(root, generation / STATE, checksums[STATE])
        if size_limit is not None:
            _check_size(generation / TENSORS, state, size_limit)
        if checksums[TENSORS].size is None and check_regular(generation / TENSORS, root):
            with safe_open(generation / TENSORS, framework="pt"):
                pass  # compares the length of the file with its header, before all of it is read
        verify_file(root, generation / TENSORS, checksums[TENSORS])
        return load_file(generation / TENSORS), state
    except FileNotFoundError as error:
        raise _missing_file(root, error) from None
    except (OSError, ValueError, RecursionError, MemoryError, SafetensorError) as error:
        raise read_error(root, error) from None


def _check_size(tensors: Path, state: dict[str, Any], size_limit: SizeLimit) -> None:
    size = tensors.lstat().st_size
    if size > SIZE_TO_CHECK and size > (limit := max(SIZE_TO_CHECK, size_limit(state))):
        raise TooLarge(
            f"{tensors} has {size >> 20} MiB, more than the {int(limit) >> 20} MiB that a model with these settings "
            "can need; restore it from a copy"
        )


def read_error(root: Path, error: BaseException) -> UserError:
    """Error for a folder that could not be read: `TemporarilyUnreadable` if the folder itself may be intact."""
    kind = TemporarilyUnreadable if is_transient(error) else UserError
    file = error.filename if isinstance(error, OSError) else None
    where = f"{file}: " if isinstance(file, str) and Path(file) != root else ""
    return kind(f"cannot read the model folder {root}: {where}{error_summary(error)}")


def is_transient(error: BaseException) -> bool:
    """Whether an error means that a file cannot be read now, but may be intact."""
    return isinstance(error, PermissionError) or (isinstance(error, OSError) and error.errno in TRANSIENT_ERRORS)


def read_state_unchecked(generation: Path) -> dict[str, Any]:
    """Content of a generation's `state.json`, without verification; empty if it cannot be read."""
    try:
        state = parse_json(read_regular_text(generation / STATE))
    except (OSError, ValueError, RecursionError, UserError):
        return {}
    return state if isinstance(state, dict) else {}


def error_summary(error: BaseException) -> str:
    """First line of an error's message; its type if it has no message."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
    return text.splitlines()[0]


def _missing_file(root: Path, error: FileNotFoundError) -> UserError:
    return UserError(f"{root} is not a model folder of itl: {Path(str(error.filename)).name} is missing")
