"""Decoded images kept on the disk, so that the next start maps them into memory in place of decoding them.

A cache is one .npy file per array and one JSON that says what they were made from. Opening it is cheap: the JSON, the
sizes, the .npy headers and a checksum of blocks spread over each file (the whole of 1.2 GB would take seconds at every
start), which finds truncation, a foreign file or a half-written one, though not one flipped bit between two blocks.
"""

from __future__ import annotations

import json
import os
import time
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from itl.errors import UserError

FORMAT = 1  # raise it whenever the same source would be decoded to other bytes
_BLOCKS, _BLOCK = 256, 1 << 14
_ABANDONED = 3600.0  # seconds: nobody is still writing to a temporary file untouched for so long


@dataclass(frozen=True)
class Array:
    """An array to be written: its shape and its uint8 pieces along the first axis, made while they are written."""

    shape: tuple[int, ...]
    pieces: Iterable[npt.NDArray[np.uint8]]


def load(folder: Path, name: str, made_from: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """The cache `name`: (memory-mapped arrays, notes), or None where it is absent, damaged or of another source."""
    try:
        about = json.loads((folder / f"{name}.json").read_bytes())
        if about["format"] != FORMAT or about["made_from"] != made_from:
            return None
        arrays = {}
        for key, facts in about["arrays"].items():
            path = folder / f"{name}-{key}.npy"
            if _summary(path) != {"bytes": facts["bytes"], "crc32": facts["crc32"]}:
                return None
            # "c", copy on write: PyTorch warns about memory it may not write to, and a write must not reach the file.
            mapped = np.load(path, mmap_mode="c", allow_pickle=False)
            if list(mapped.shape) != facts["shape"] or mapped.dtype != np.uint8:
                return None
            arrays[key] = torch.from_numpy(mapped)
        return arrays, about["notes"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # whatever is wrong with it, it can be made again


def save(
    folder: Path, name: str, made_from: Mapping[str, Any], notes: Mapping[str, Any], arrays: dict[str, Array]
) -> None:
    """Write the cache `name`. Each file appears whole or not at all, and the JSON that vouches for them last."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _sweep(folder)
        (folder / f"{name}.json").unlink(missing_ok=True)
        facts = {}
        for key, array in arrays.items():
            path = folder / f"{name}-{key}.npy"
            _write(path, array)
            facts[key] = {"shape": list(array.shape), **_summary(path)}
        about = {"format": FORMAT, "made_from": made_from, "notes": notes, "arrays": facts}
        draft = _draft(folder / f"{name}.json")
        draft.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
        os.replace(draft, folder / f"{name}.json")
    except OSError as error:
        why = error.strerror or error
        raise UserError(
            f"cannot write decoded images to {folder}: {why}; make room there, or use a folder you may write to"
        ) from error


def _write(path: Path, array: Array) -> None:
    """One .npy file by ordinary writes: on a full disk they fail cleanly; writes to mapped memory kill the process."""
    draft = _draft(path)
    try:
        with draft.open("wb") as file:
            header = {"descr": "|u1", "fortran_order": False, "shape": array.shape}
            np.lib.format.write_array_header_1_0(file, header)
            for piece in array.pieces:
                file.write(np.ascontiguousarray(piece).data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def _draft(path: Path) -> Path:
    """Where this process writes before it renames: two that build the same cache at once do not meet."""
    return path.with_name(f"{path.name}.{os.getpid()}.tmp")


def _sweep(folder: Path) -> None:
    """Remove what a killed process left behind."""
    for draft in folder.glob("*.tmp"):
        if time.time() - draft.stat().st_mtime > _ABANDONED:
            draft.unlink(missing_ok=True)


def _summary(path: Path) -> dict[str, int]:
    """A file's size and the CRC-32 of blocks spread evenly over it, its first and last bytes among them."""
    size = path.stat().st_size
    with path.open("rb") as file:
        return {"bytes": size, "crc32": _spread_crc(file, size)}


def _spread_crc(file: BinaryIO, size: int) -> int:
    crc = 0
    for place in sorted({max(size - _BLOCK, 0) * k // (_BLOCKS - 1) for k in range(_BLOCKS)}):
        file.seek(place)
        crc = zlib.crc32(file.read(_BLOCK), crc)
    return crc
