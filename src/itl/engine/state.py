"""Saved state: a folder of generations and one atomically replaced file that names the current one. No pickle.

A generation is `tensors.safetensors` and `state.json` (which holds the former's checksum). It is written whole under
another name, then renamed; then `CURRENT` is replaced. A crash at any instant leaves the old state or the new one.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from itl.errors import UserError

FORMAT = 1
CURRENT, TENSORS, STATE = "CURRENT", "tensors.safetensors", "state.json"


def write(folder: str | os.PathLike[str], tensors: dict[str, Tensor], state: dict[str, Any]) -> Path:
    """Write a new generation into `folder` and make it the current one; older generations are removed."""
    root = Path(folder)
    try:
        root.mkdir(parents=True, exist_ok=True)
        number = max((_number(p) for p in root.glob("generation-*")), default=0) + 1
        draft = root / f".draft-{number:06d}"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        save_file({name: t.detach().cpu().contiguous() for name, t in tensors.items()}, draft / TENSORS)
        head = {"format": FORMAT, "sha256": _sha256(draft / TENSORS)}
        (draft / STATE).write_text(json.dumps({**head, **state}, indent=1))
        for name in (TENSORS, STATE):
            _flush(draft / name)
        target = root / f"generation-{number:06d}"
        draft.rename(target)
        _flush(root)
        replace_text(root / CURRENT, target.name + "\n")
    except OSError as error:
        raise UserError(
            f"cannot write the model folder {root}: {error.strerror or error}; what was there is unchanged"
        ) from error
    for old in root.glob("generation-*"):
        if _number(old) < number:
            shutil.rmtree(old, ignore_errors=True)
    return target


def read(folder: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The current generation's tensors and state, checked; a damaged or foreign folder is a `UserError`."""
    root = Path(folder)
    try:
        name = (root / CURRENT).read_text().strip()
        if not name.startswith("generation-") or "/" in name or not name[11:].isdigit():
            raise UserError(f"{root / CURRENT} does not name a generation; this is not a model folder of itl")
        state = json.loads((root / name / STATE).read_text())
        if not isinstance(state, dict) or state.get("format") != FORMAT:
            raise UserError(f"{root / name / STATE} has another format version; this itl reads version {FORMAT}")
        if _sha256(root / name / TENSORS) != state.get("sha256"):
            raise UserError(f"{root / name / TENSORS} is damaged (its checksum differs); restore it from a copy")
        return load_file(root / name / TENSORS), state
    except FileNotFoundError as error:
        raise UserError(f"{root} is not a model folder of itl: {Path(str(error.filename)).name} is missing") from None
    except (OSError, ValueError, SafetensorError) as error:
        raise UserError(f"cannot read the model folder {root}: {error}") from None


def replace_text(path: Path, text: str) -> None:
    """Replace a small file's content in one atomic step."""
    draft = path.with_name(f".{path.name}.draft")
    draft.write_text(text)
    _flush(draft)
    os.replace(draft, path)


def _number(path: Path) -> int:
    return int(path.name.rpartition("-")[2]) if path.name.rpartition("-")[2].isdigit() else 0


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush(path: Path) -> None:
    """Make sure the disk has it."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
