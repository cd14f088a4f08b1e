"""Saved state: a folder of generations and one atomically replaced file that names the current one. No pickle.

A generation is `tensors.safetensors`, `state.json`, whatever its owner puts beside them, and `SHA256SUMS` over all of
it (`sha256sum -c` reads it too). It is written whole under another name, then renamed; then `CURRENT`, which names it
and has the checksum of its checksums, is replaced. A crash at any instant leaves the old state or the new one.
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

FORMAT = 2
CURRENT, TENSORS, STATE, SUMS = "CURRENT", "tensors.safetensors", "state.json", "SHA256SUMS"
NAME = re.compile(r"generation-([0-9]{6,12})")
MOST_TEXT = 64 << 20  # bytes of a state.json or SHA256SUMS; more is no state of ours
PASSING = (errno.EMFILE, errno.ENFILE, errno.ESTALE, errno.ENOMEM)  # reasons that say nothing about a file
BUSY = "{} is being written to all the time; try again later"
TRIES = 5  # of reading a folder in which somebody writes generation after generation


class Unreadable(UserError):
    """A folder that this process cannot read now; nothing says that it is damaged."""


class OtherVersion(UserError):
    """A state that is not damaged, but of another version of itl."""


def write(
    folder: str | os.PathLike[str],
    tensors: dict[str, Tensor],
    state: dict[str, Any],
    *,
    beside: Callable[[Path], None] | None = None,
    keep: Collection[str] = (),
) -> Path:
    """Write a new generation into `folder` and make it the current one; returns its folder.

    `beside(draft)` may put further files into it. Older generations are removed but for the names in `keep`.
    """
    root = Path(folder)
    draft: Path | None = None
    try:
        root.mkdir(parents=True, exist_ok=True)
        following = max((number(p.name) for p in root.glob("generation-*")), default=0) + 1
        draft = root / f".draft-{following:06d}"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        save_file({name: t.detach().cpu().contiguous() for name, t in tensors.items()}, draft / TENSORS)
        (draft / STATE).write_text(json.dumps({"format": FORMAT, **state}, indent=1), encoding="utf-8")
        if beside is not None:
            beside(draft)
        seal(draft)
        target = root / f"generation-{following:06d}"
        draft.rename(target)
        flush_to_disk(root)
        point(root, target.name)
    except (OSError, SafetensorError) as error:
        if draft is not None:
            shutil.rmtree(draft, ignore_errors=True)  # a full disk gets its room back
        raise UserError(
            f"cannot write the model folder {root}: {reason(error)}; what was there is unchanged"
        ) from error
    tidy(root, {target.name, *keep})
    return target


def seal(generation: Path) -> None:
    """Write the checksums of all files of a generation, and make sure that the disk has them."""
    files = sorted(p for p in generation.rglob("*") if p.is_file() and p.name != SUMS)
    lines = [f"{_sha256(path)}  {path.relative_to(generation).as_posix()}\n" for path in files]
    (generation / SUMS).write_text("".join(lines), encoding="utf-8")
    for path in (*files, generation / SUMS, *(p for p in generation.rglob("*") if p.is_dir()), generation):
        flush_to_disk(path)


def point(root: Path, name: str) -> None:
    """Make a generation the current one, in one step."""
    write_text_atomic(root / CURRENT, f"{name}\n{_sha256(root / name / SUMS)}\n")


def tidy(root: Path, kept: Collection[str]) -> None:
    """Remove every generation and draft but those named."""
    for old in (*root.glob("generation-*"), *root.glob(".draft-*")):
        if old.name not in kept:
            shutil.rmtree(old, ignore_errors=True)
    for old in root.glob(f".{CURRENT}.*.tmp"):  # of processes that were killed
        old.unlink(missing_ok=True)


def generations(folder: str | os.PathLike[str]) -> list[str]:
    """The names of all generations there, oldest first."""
    return sorted((p.name for p in Path(folder).glob("generation-*") if NAME.fullmatch(p.name)), key=number)


def current(folder: str | os.PathLike[str]) -> str:
    """The name of the current generation, whose checksums are the ones that were meant."""
    root = Path(folder)
    try:
        for _ in range(TRIES):
            text = _text(root / CURRENT)
            name, _, digest = text.strip().partition("\n")
            if not NAME.fullmatch(name):
                raise UserError(f"{root / CURRENT} does not name a generation; this is not a model folder of itl")
            sums_there = root / name / SUMS
            if sums_there.exists() and _must_be_plain(sums_there, root) and _sha256(sums_there) == digest:
                return name
            if _text(root / CURRENT) == text:  # else somebody replaced it just now
                what = "is damaged or not the one that was saved" if sums_there.exists() else "is missing"
                raise UserError(
                    f"{root} is not a whole model folder of itl: {name}/{SUMS} {what}; restore it from a copy"
                )
    except FileNotFoundError as error:
        raise UserError(f"{root} is not a model folder of itl: {Path(str(error.filename)).name} is missing") from None
    except (OSError, ValueError) as error:
        raise cannot_read(root, error) from None
    raise UserError(BUSY.format(root))


def named(folder: str | os.PathLike[str]) -> str | None:
    """The generation that `CURRENT` names, whole or not; None where it names none."""
    try:
        name = _text(Path(folder) / CURRENT).partition("\n")[0].strip()
    except (OSError, ValueError, UserError):
        return None
    return name if NAME.fullmatch(name) else None


def remove(root: Path) -> None:
    """Remove a folder of generations; what else lies in it stays."""
    (root / CURRENT).unlink()  # from here on it is none any more
    tidy(root, ())


def read(folder: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The current generation's tensors and state, checked; a damaged or foreign folder is a `UserError`.

    A generation that is replaced while it is read is read anew.
    """
    for _ in range(TRIES):
        name = current(folder)
        try:
            return read_generation(Path(folder), name)
        except UserError:
            if current(folder) == name:
                raise
    raise UserError(BUSY.format(folder))


def read_generation(root: Path, name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """A generation's tensors and state. Nothing is taken from it before all its checksums are found right."""
    here = root / name
    try:
        listed = sums(here)
        state = json.loads(_text(here / STATE))
        if not isinstance(state, dict) or type(state.get("format")) is not int or state["format"] != FORMAT:
            other = isinstance(state, dict) and type(state.get("format")) is int
            said = f"{here / STATE} has another format version; this itl reads version {FORMAT}"
            raise OtherVersion(said) if other else UserError(said)
        for file, digest in listed.items():
            path = here / file
            _must_be_plain(path, root)
            if _sha256(path) != digest:
                raise UserError(f"{path} is damaged (its checksum differs); restore it from a copy")
        return load_file(here / TENSORS), state
    except FileNotFoundError as error:
        raise UserError(f"{root} is not a model folder of itl: {Path(str(error.filename)).name} is missing") from None
    except (OSError, ValueError, RecursionError, MemoryError, SafetensorError) as error:
        raise cannot_read(root, error) from None


def cannot_read(root: Path, error: BaseException) -> UserError:
    """The error for a folder that could not be read, told apart where it may be only for now."""
    passing = isinstance(error, PermissionError) or (isinstance(error, OSError) and error.errno in PASSING)
    return (Unreadable if passing else UserError)(f"cannot read the model folder {root}: {reason(error)}")


def read_text(path: Path) -> dict[str, Any]:
    """A generation's state.json alone, unchecked: for deciding what to do with old ones."""
    try:
        state = json.loads(_text(path / STATE))
    except (OSError, ValueError, RecursionError):
        return {}
    return state if isinstance(state, dict) else {}


def sums(here: Path) -> dict[str, str]:
    """What SHA256SUMS says; the files that every generation has must be among it, and none may lie elsewhere."""
    out: dict[str, str] = {}
    for line in _text(here / SUMS).splitlines():
        digest, gap, name = line.partition("  ")
        parts = name.split("/")
        if not gap or not re.fullmatch("[0-9a-f]{64}", digest) or name in out or {"", ".", ".."} & set(parts):
            raise UserError(f"{here / SUMS} is damaged; restore it from a copy")
        out[name] = digest
    for name in (TENSORS, STATE):
        if name not in out:
            raise FileNotFoundError(2, "missing", str(here / (name if not (here / name).exists() else SUMS)))
    return out


def _must_be_plain(path: Path, root: Path) -> bool:
    """Links and devices could lead anywhere, or never end."""
    while path != root:
        mode = path.lstat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise UserError(f"{path} is no plain file; a model folder holds nothing else")
        path = path.parent
    return True


def _text(path: Path) -> str:
    mode = path.lstat()
    if not stat.S_ISREG(mode.st_mode):
        raise UserError(f"{path} is no plain file; a model folder holds nothing else")
    if mode.st_size > MOST_TEXT:
        raise UserError(f"{path} is {mode.st_size >> 20} MiB long; this is not a model folder of itl")
    return path.read_text(encoding="utf-8")


def number(name: str) -> int:
    """A generation's number by its name; 0 for a name of another form."""
    digits = name.rpartition("-")[2]
    return int(digits) if digits.isdigit() else 0


def reason(error: BaseException) -> str:
    """An error in one line."""
    said = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
    return said.splitlines()[0]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
