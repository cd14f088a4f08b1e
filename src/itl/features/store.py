"""A store of features by image content: segments in memory or, if there is a cache folder, mapped from disk."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from itl.errors import UserError
from itl.streams import array_cache

MIN_SEGMENT_ON_DISK = 32  # images: fewer are computed as fast as a file is opened
MAX_BYTES_ON_DISK = 8 << 30  # of all segments of all trunks; the newest segment may exceed it
KEY_BYTES = 16


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
        self.count = 0
        if folder is not None and folder.is_dir():
            for file in sorted(folder.glob(f"{name}*.json")):
                self._open(file.stem)

    def append(self, keys: Sequence[bytes], features: Iterable[Tensor]) -> None:
        """Add the features of new images, given in chunks `[k, *shape]`; on disk if the segment is large enough."""
        if self.folder is not None and len(keys) >= MIN_SEGMENT_ON_DISK and self._write(keys, features):
            return
        self._add(keys, torch.cat(list(features)))

    def gather(self, rows: Tensor, views: Tensor) -> Tensor:
        """Features float32 `[n, ...]` of the views `[n]` of the rows `[n]`."""
        out = torch.empty((len(rows), *self.shape[1:]))
        segment = np.searchsorted(self.starts, rows.numpy(), "right") - 1
        for k in np.unique(segment):
            here = torch.from_numpy(np.flatnonzero(segment == k))
            out[here] = self.segments[k][rows[here] - self.starts[k], views[here]]
        return out

    def _add(self, keys: Sequence[bytes], features: Tensor) -> None:
        self.segments.append(features)
        self.starts.append(self.count)
        for offset, key in enumerate(keys):
            self.rows.setdefault(key, self.count + offset)
        self.count += len(keys)

    def _write(self, keys: Sequence[bytes], features: Iterable[Tensor]) -> bool:
        """Write a segment as it is computed and map it; False if the folder cannot be written to."""
        assert self.folder is not None
        stem = f"{self.name}{hashlib.blake2b(b''.join(keys), digest_size=4).hexdigest()}"
        size = 4 * int(np.prod(self.shape))
        if not array_cache.has_disk_space(self.folder, size * len(keys)):
            return False
        chunks = (chunk.contiguous().view(torch.uint8).view(len(chunk), size).numpy() for chunk in features)
        key_bytes = np.frombuffer(b"".join(keys), np.uint8).reshape(len(keys), KEY_BYTES)
        arrays = {
            "features": array_cache.ChunkedArray((len(keys), size), chunks),
            "keys": array_cache.ChunkedArray(key_bytes.shape, [key_bytes]),
        }
        try:
            array_cache.save(self.folder, stem, self._made_from(), {}, arrays)
        except UserError:
            raise UserError(
                f"cannot write features to {self.folder}; set ITL_CACHE=off to keep them in memory"
            ) from None
        array_cache.evict(self.folder, stem, MAX_BYTES_ON_DISK)
        return self._open(stem)

    def _open(self, stem: str) -> bool:
        assert self.folder is not None
        found = array_cache.load(self.folder, stem, self._made_from())
        if found is None:
            return False
        arrays, _ = found
        keys = [row.tobytes() for row in arrays["keys"].numpy()]
        self._add(keys, arrays["features"].view(torch.float32).view(len(keys), *self.shape))
        array_cache.mark_used(self.folder, stem)
        return True

    def _made_from(self) -> dict[str, object]:
        return {"features": self.name, "shape": list(self.shape)}
