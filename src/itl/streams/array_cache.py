"""On-disk cache of large uint8 arrays, memory-mapped when they are loaded.

Datasets of many compressed images use it to decode them only once. A cache is one .npy file per array and one JSON file
that describes what the arrays were made from. Opening a cache is cheap: it checks the JSON, the file sizes, the .npy
headers and a checksum of blocks spread over each file. This detects truncated, foreign and half-written files, but not
a single flipped bit between two blocks; reading all of 1.2 GB would take seconds at every start.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import numpy.typing as npt

from itl.atomic import atomic_write, write_text_atomic
from itl.errors import UserError
from itl.regular_files import open_regular
from itl.strict_json import read_json

if TYPE_CHECKING:
    from torch import Tensor

CACHE_FORMAT = 1  # increase it whenever the same source would be decoded to other bytes
_CHECKSUM_BLOCKS, _BLOCK_BYTES = 256, 1 << 14
MAX_CACHE_BYTES = 8 << 30  # of all entries together; the newest entry may exceed it
MIN_FREE_DISK_BYTES = 1 << 30
CACHE_FILE_NAME = re.compile(r"[0-9a-f]{40}(?![0-9a-f])")  # prefix of the name of files that may be evicted
_STALE_SECONDS = 3600.0  # age at which a temporary file is taken for one that a killed process left


@dataclass(frozen=True)
class ChunkedArray:
    """An array to write: its shape, and its uint8 chunks along the first axis, which may be generated lazily."""

    shape: tuple[int, ...]
    chunks: Iterable[npt.NDArray[np.uint8]]


def load(folder: Path, name: str, made_from: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Load a cache.

    Args:
        folder: Folder of the cache.
        name: Name of the cache; its files begin with it.
        made_from: JSON value that identifies the source, as it was given to `save`.

    Returns:
        The memory-mapped arrays by name and the notes, or None if the cache is missing, damaged or of another source.
    """
    import torch  # deferred: listing image files must not wait for torch

    try:
        about = read_json(folder / f"{name}.json")
        if about["format"] != CACHE_FORMAT or about["made_from"] != made_from:
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
    except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, OverflowError):
        return None  # a damaged cache can always be rebuilt


def save(
    folder: Path, name: str, made_from: Mapping[str, Any], notes: Mapping[str, Any], arrays: dict[str, ChunkedArray]
) -> None:
    """Write a cache. Each file is renamed into place when it is complete, the JSON file last.

    Args:
        folder: Folder of the cache; it is created if it does not exist.
        name: Name of the cache.
        made_from: JSON value that identifies the source.
        notes: JSON value that `load` returns with the arrays.
        arrays: The arrays by name.

    Raises:
        UserError: The folder cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _remove_stale_files(folder)
        (folder / f"{name}.json").unlink(missing_ok=True)
        facts = {}
        for key, array in arrays.items():
            path = folder / f"{name}-{key}.npy"
            _write(path, array)
            facts[key] = {"shape": list(array.shape), **_summary(path)}
        about = {"format": CACHE_FORMAT, "made_from": made_from, "notes": notes, "arrays": facts}
        write_text_atomic(folder / f"{name}.json", json.dumps(about, indent=1) + "\n")
    except OSError as error:
        why = error.strerror or error
        raise UserError(
            f"cannot write decoded images to {folder}: {why}; free some space, or use a folder you can write to"
        ) from error


def _write(path: Path, array: ChunkedArray) -> None:
    """Write an .npy file with ordinary writes, which fail cleanly on a full disk; mapped memory would crash."""
    with atomic_write(path) as file:
        header = {"descr": "|u1", "fortran_order": False, "shape": array.shape}
        np.lib.format.write_array_header_1_0(file, header)
        for chunk in array.chunks:
            file.write(np.ascontiguousarray(chunk).data)


def _remove_stale_files(folder: Path) -> None:
    """Remove temporary files that killed processes left behind."""
    for path in folder.glob(".*.tmp.*"):
        with suppress(OSError):  # another process is finishing it
            if time.time() - path.stat().st_mtime > _STALE_SECONDS:
                path.unlink()


def _summary(path: Path) -> dict[str, int]:
    """Size of a file, and CRC-32 of evenly spread blocks that include its first and last bytes."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        return {"bytes": size, "crc32": _spread_crc(file, size)}


def _spread_crc(file: BinaryIO, size: int) -> int:
    crc = 0
    for offset in sorted({max(size - _BLOCK_BYTES, 0) * k // (_CHECKSUM_BLOCKS - 1) for k in range(_CHECKSUM_BLOCKS)}):
        file.seek(offset)
        crc = zlib.crc32(file.read(_BLOCK_BYTES), crc)
    return crc


def has_disk_space(folder: Path, size: int) -> bool:
    """Return whether `folder` is writable and `size` more bytes leave `MIN_FREE_DISK_BYTES` on its disk."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return os.access(folder, os.W_OK) and shutil.disk_usage(folder).free - size > MIN_FREE_DISK_BYTES
    except OSError:
        return False


def evict(folder: Path, newest: str, limit: int = MAX_CACHE_BYTES) -> None:
    """Remove the least recently used entries, but not `newest`, until all entries together are within `limit` bytes.

    A process that has a removed file mapped into memory can continue to use it.
    """
    entries = []
    for index_file in cache_files(folder, "json"):
        try:
            files = [index_file, *folder.glob(f"{index_file.stem}-*.npy")]
            entries.append((index_file.stat().st_mtime_ns, sum(file.stat().st_size for file in files), files))
        except OSError:
            continue  # another process is removing this entry
    total = sum(size for _, size, _ in entries)
    for _, size, files in sorted(entries):
        if total <= limit:
            return
        if files[0].stem != newest:
            for file in files:
                with suppress(OSError):  # a file of another user in a shared cache folder
                    file.unlink()
            total -= size


def mark_used(folder: Path, key: str) -> None:
    """Record that a cache entry was used now."""
    with suppress(OSError):
        os.utime(folder / f"{key}.json")


def cache_files(folder: Path, suffix: str) -> list[Path]:
    """Return the cache's own files with this suffix; the folder may contain other files."""
    return [file for file in folder.glob(f"*.{suffix}") if CACHE_FILE_NAME.match(file.name.lstrip("."))]
