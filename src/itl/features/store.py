"""A store of features by image content: segments in memory or, if there is a cache folder, mapped from disk."""

from __future__ import annotations

import hashlib
import os
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from itl.errors import UserError
from itl.streams import array_cache

MIN_SEGMENT_ON_DISK = 8  # images: fewer are not worth a file
MAX_BYTES_ON_DISK = 8 << 30  # of all segments of all trunks; the newest segment may exceed it
KEY_BYTES, CHECKSUM_BYTES = 16, 4


def image_key(image: np.ndarray) -> bytes:
    """Digest of an image's shape and pixels."""
    digest = hashlib.blake2b(str(image.shape).encode(), digest_size=KEY_BYTES)
    digest.update(np.ascontiguousarray(image).data)
    return digest.digest()


class FeatureStore:
    """Features of images, appended in segments and found by the image's key.

    Args:
        name: Identifies the trunk, its preprocessing and the views; features of another name are never mixed.
        shape: Shape of one image's features, `[views, ...]`.
        folder: Cache folder, or None to keep everything in memory.
    """

    def __init__(self, name: str, shape: Sequence[int], folder: Path | None) -> None:
        self.name, self.shape, self.folder = name, tuple(shape), folder
        self.rows: dict[bytes, int] = {}
        self.segments: list[Tensor] = []  # float32 [n, *shape] each
        self.starts: list[int] = []
        self._checksums: list[np.ndarray | None] = []  # of each row of a segment on disk
        self.count = 0
        if folder is not None and os.path.isdir(folder):
            for file in sorted(folder.glob(f"{name}*.json")):
                self._open(file.stem)

    def find(self, key: bytes) -> int:
        """The row of an image; -1 if it has none, or if its features on disk are damaged."""
        row = self.rows.get(key, -1)
        if row < 0:
            return -1
        segment = bisect_right(self.starts, row) - 1
        checksums, offset = self._checksums[segment], row - self.starts[segment]
        if checksums is not None and _checksum(self.segments[segment][offset].numpy()) != checksums[offset].tobytes():
            del self.rows[key]
            return -1
        return row

    def append(self, keys: Sequence[bytes], compute: Callable[[], Iterable[Tensor]]) -> None:
        """Add the features of new images; on disk if the segment is large enough.

        Args:
            keys: The images' keys.
            compute: Returns the features in chunks `[k, *shape]`. It is called again if they are lost on the disk.
        """
        if self.folder is not None and len(keys) >= MIN_SEGMENT_ON_DISK and self._write(keys, compute()):
            return
        self._add(keys, torch.cat(list(compute())))

    def gather(self, rows: Tensor, views: Tensor) -> Tensor:
        """Features float32 `[n, ...]` of the views `[n]` of the rows `[n]`."""
        out = torch.empty((len(rows), *self.shape[1:]))
        segment = np.searchsorted(self.starts, rows.numpy(), "right") - 1
        for k in np.unique(segment):
            here = torch.from_numpy(np.flatnonzero(segment == k))
            out[here] = self.segments[k][rows[here] - self.starts[k], views[here]]
        return out

    def _add(self, keys: Sequence[bytes], features: Tensor, checksums: np.ndarray | None = None) -> None:
        self.segments.append(features)
        self._checksums.append(checksums)
        self.starts.append(self.count)
        for offset, key in enumerate(keys):
            self.rows.setdefault(key, self.count + offset)
        self.count += len(keys)

    def _write(self, keys: Sequence[bytes], features: Iterable[Tensor]) -> bool:
        """Write a segment as it is computed and map it; False if it cannot be written or is gone already."""
        assert self.folder is not None
        stem = f"{self.name}{hashlib.blake2b(b''.join(keys), digest_size=4).hexdigest()}"
        size = 4 * int(np.prod(self.shape))
        if not array_cache.has_disk_space(self.folder, size * len(keys)):
            return False
        checksums: list[bytes] = []

        def chunks() -> Iterator[np.ndarray]:
            for chunk in features:
                rows = chunk.contiguous().view(torch.uint8).view(len(chunk), size).numpy()
                checksums.extend(_checksum(row) for row in rows)
                yield rows

        def column(values: list[bytes], width: int) -> array_cache.ChunkedArray:
            # Generated when it is written: the checksums are known only then.
            array = (np.frombuffer(b"".join(values), np.uint8).reshape(len(keys), width) for _ in range(1))
            return array_cache.ChunkedArray((len(keys), width), array)

        arrays = {
            "features": array_cache.ChunkedArray((len(keys), size), chunks()),
            "keys": column(list(keys), KEY_BYTES),
            "checksums": column(checksums, CHECKSUM_BYTES),
        }
        try:
            array_cache.save(self.folder, stem, self._made_from(), {}, arrays)
        except UserError:
            return False
        array_cache.evict(self.folder, stem, MAX_BYTES_ON_DISK)
        return self._open(stem)

    def _open(self, stem: str) -> bool:
        assert self.folder is not None
        found = array_cache.load(self.folder, stem, self._made_from())
        if found is None:
            return False
        arrays, _ = found
        try:
            keys = [row.tobytes() for row in arrays["keys"].view(-1, KEY_BYTES).numpy()]
            checksums = arrays["checksums"].view(len(keys), CHECKSUM_BYTES).numpy()
            features = arrays["features"].view(torch.float32).view(len(keys), *self.shape)
        except (KeyError, RuntimeError):  # arrays of other shapes than this version writes
            return False
        self._add(keys, features, checksums)
        array_cache.mark_used(self.folder, stem)
        return True

    def _made_from(self) -> dict[str, object]:
        return {"features": self.name, "shape": list(self.shape)}


def _checksum(row: np.ndarray) -> bytes:
    return zlib.crc32(np.ascontiguousarray(row).data).to_bytes(CHECKSUM_BYTES, "little")
