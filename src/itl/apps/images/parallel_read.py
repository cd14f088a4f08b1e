"""Decode many image files in parallel, in order, and cache the result on disk."""

from __future__ import annotations

import itertools
import math
import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from itl.apps.images import decoded_cache
from itl.apps.images.read import Pixels, SkippedPath, UnreadableImage, decode, ignore_warnings
from itl.cpu import available_cores
from itl.errors import UserError
from itl.streams import array_cache

if TYPE_CHECKING:
    from itl.streams import Progress

MIN_CACHED_IMAGES = 64  # fewer images are decoded as fast as a cache entry is opened
WRITE_CHUNK = 256  # images written to the cache at once


class ReadResult(NamedTuple):
    """The result of `read_images`.

    Attributes:
        pixels: The readable images, uint8 `[n, 3, size, size]`, mapped from disk if they come from the cache.
        indices: The index into `paths` of each of them, int64 `[n]`.
        skipped: The other files, with reasons.
    """

    pixels: Pixels
    indices: npt.NDArray[np.int64]
    skipped: list[SkippedPath]


def read_images(
    paths: Sequence[str | os.PathLike[str]],
    size: int,
    workers: int | None = None,
    progress: Progress | None = None,
    interpolation: str = "bilinear",
) -> ReadResult:
    """Read image files as `read_image` does, in parallel.

    The result is cached on disk: reading the same unchanged files again maps it into memory.

    Args:
        paths: The image files.
        size: Width and height of the result in pixels.
        workers: Number of threads; by default, one per available CPU.
        progress: Called as `progress(done, total)` after every image.
        interpolation: "bilinear" or "bicubic".

    Returns:
        The pixels of the readable images, their indices in `paths`, and the skipped files.
    """
    files = [Path(path) for path in paths]
    folder = decoded_cache.cache_folder()
    cacheable = folder is not None and len(files) >= MIN_CACHED_IMAGES
    key = decoded_cache.cache_key(files, size, interpolation) if cacheable else None
    decoder = _Decoder(files, size, workers, progress, interpolation)
    if folder is not None and key is not None:
        cached = _load(folder, key, decoder) or _decode_into_cache(folder, key, decoder)
        if cached is not None:
            return cached
        decoder = decoder.restarted()
    images = list(decoder)
    pixels = np.stack(images) if images else np.zeros((0, 3, size, size), np.uint8)
    return ReadResult(pixels, np.array(decoder.indices, np.int64), decoder.skipped)


class _Decoder:
    """Iterates over the readable images of `files` in order; collects their indices and the skipped files."""

    def __init__(
        self, files: Sequence[Path], size: int, workers: int | None, progress: Progress | None, interpolation: str
    ) -> None:
        self.files, self.size, self.progress, self.interpolation = files, size, progress, interpolation
        self.workers = max(1, workers if workers is not None else available_cores())
        self.indices: list[int] = []
        self.skipped: list[SkippedPath] = []

    def restarted(self, files: Sequence[Path] | None = None) -> _Decoder:
        """Return a new decoder with the same options. If it is given other files, it reports no progress."""
        progress = self.progress if files is None else None
        return _Decoder(self.files if files is None else files, self.size, self.workers, progress, self.interpolation)

    def __iter__(self) -> Iterator[Pixels]:
        with ignore_warnings(), ThreadPoolExecutor(self.workers) as pool:
            queue: deque[Future[Pixels]] = deque()  # bounded, so that decoded images do not pile up in memory
            try:
                for file in self.files:
                    queue.append(pool.submit(decode, file, self.size, self.interpolation))
                    if len(queue) == 4 * self.workers:
                        yield from self._result(queue.popleft())
                while queue:
                    yield from self._result(queue.popleft())
            finally:
                pool.shutdown(cancel_futures=True)

    def _result(self, future: Future[Pixels]) -> Iterator[Pixels]:
        index = len(self.indices) + len(self.skipped)
        try:
            pixels = future.result()
        except UnreadableImage as error:
            self.skipped.append(SkippedPath(self.files[index], error.reason))
        else:
            self.indices.append(index)
            yield pixels
        if self.progress is not None:
            self.progress(index + 1, len(self.files))


def _load(folder: Path, key: str, decoder: _Decoder) -> ReadResult | None:
    """Load a cache entry; None if there is none.

    Files that were skipped are decoded again, because the reason may have been temporary (such as a lack of memory).
    If one of them is readable now, the entry is not used.
    """
    files = decoder.files
    found = array_cache.load(folder, key, {"images": len(files)})
    if found is None:
        return None
    arrays, notes = found
    indices = np.array(notes["kept"], np.int64)
    skipped = decoder.restarted([files[i] for i in np.setdiff1d(np.arange(len(files)), indices)])
    for _ in skipped:
        return None
    decoded_cache.mark_used(folder, key)
    return ReadResult(arrays["pixels"].numpy()[: len(indices)], indices, skipped.skipped)


def _decode_into_cache(folder: Path, key: str, decoder: _Decoder) -> ReadResult | None:
    """Decode straight to disk, so that the images need not fit in memory; None if the cache cannot be written."""
    files, size = decoder.files, decoder.size
    shape = (len(files), 3, size, size)
    if not decoded_cache.has_disk_space(folder, math.prod(shape)):
        return None

    def chunks() -> Iterator[Pixels]:
        images = iter(decoder)
        while chunk := list(itertools.islice(images, WRITE_CHUNK)):
            yield np.stack(chunk)
        # The array's length is declared before decoding, so skipped files leave unused rows at its end.
        yield np.zeros((len(decoder.skipped), *shape[1:]), np.uint8)

    try:
        # The notes are written after all chunks, when `decoder.indices` is complete.
        array = array_cache.ChunkedArray(shape, chunks())
        array_cache.save(folder, key, {"images": len(files)}, {"kept": decoder.indices}, {"pixels": array})
    except UserError:
        return None
    decoded_cache.evict(folder, key)
    return _load(folder, key, decoder)
