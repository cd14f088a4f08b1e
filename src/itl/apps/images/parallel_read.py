"""Many image files at once: decoded by several threads, in order, and kept on the disk for the next time."""

from __future__ import annotations

import itertools
import math
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt

from itl.apps.images import decoded_cache
from itl.apps.images.read import Pixels, SkippedPath, UnreadableImage, decode, silence
from itl.errors import UserError
from itl.streams import cache as store

Progress = Callable[[int, int | None], None]
Index = npt.NDArray[np.int64]
Read = tuple[Pixels, Index, list[SkippedPath]]

WORTH_KEEPING = 64  # images: fewer are decoded as fast as a cache is opened
PIECE = 256  # images handed to the disk at once


def read_images(
    paths: Sequence[str | os.PathLike[str]],
    size: int,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Read:
    """Image files as (pixels uint8 `[n, 3, size, size]`, which of `paths` they are `[n]`, what is wrong with the rest).

    `workers`: threads (default: one for each processor); `progress(done, total)` is told of every image. The same files
    read again come from the disk, mapped into memory and not copied.
    """
    files = [Path(path) for path in paths]
    place = decoded_cache.folder()
    name = decoded_cache.key(files, size) if place is not None and len(files) >= WORTH_KEEPING else None
    if place is not None and name is not None:
        found = _open(place, name, files, size) or _keep(place, name, files, size, workers, progress)
        if found is not None:
            return found
    decoded = _Decoded(files, size, workers, progress)
    good = list(decoded)
    pixels = np.stack(good) if good else np.zeros((0, 3, size, size), np.uint8)
    return pixels, np.array(decoded.kept, np.int64), decoded.skipped


class _Decoded:
    """The good images of `files` one after another; afterwards, which they were and what was wrong with the others."""

    def __init__(self, files: Sequence[Path], size: int, workers: int | None, progress: Progress | None) -> None:
        self.files, self.size, self.progress = files, size, progress
        self.workers = max(1, workers if workers is not None else processors())
        self.kept: list[int] = []
        self.skipped: list[SkippedPath] = []

    def __iter__(self) -> Iterator[Pixels]:
        with silence(), ThreadPoolExecutor(self.workers) as pool:
            ahead: deque[Future[Pixels]] = deque()  # a bounded number of images in flight, taken in order
            try:
                for index in range(len(self.files)):
                    ahead.append(pool.submit(decode, self.files[index], self.size))
                    if len(ahead) == 4 * self.workers:
                        yield from self._take(ahead.popleft())
                while ahead:
                    yield from self._take(ahead.popleft())
            finally:
                pool.shutdown(cancel_futures=True)

    def _take(self, future: Future[Pixels]) -> Iterator[Pixels]:
        index = len(self.kept) + len(self.skipped)
        try:
            pixels = future.result()
        except UnreadableImage as error:
            self.skipped.append(SkippedPath(self.files[index], error.reason))
        else:
            self.kept.append(index)
            yield pixels
        if self.progress is not None:
            self.progress(index + 1, len(self.files))


def processors() -> int:
    """How many processors this process may use."""
    allowed = getattr(os, "sched_getaffinity", None)
    return len(allowed(0)) if allowed is not None else os.cpu_count() or 1


def _open(place: Path, name: str, files: Sequence[Path], size: int) -> Read | None:
    """What was kept of these very files. Those that were bad are tried again: it may have been for lack of memory."""
    found = store.load(place, name, {"images": len(files)})
    if found is None:
        return None
    arrays, notes = found
    kept = np.array(notes["kept"], np.int64)
    bad = _Decoded([files[i] for i in np.setdiff1d(np.arange(len(files)), kept)], size, None, None)
    for _ in bad:
        return None  # good now: all are decoded again
    decoded_cache.touch(place, name)
    return arrays["pixels"].numpy()[: len(kept)], kept, bad.skipped


def _keep(
    place: Path, name: str, files: Sequence[Path], size: int, workers: int | None, progress: Progress | None
) -> Read | None:
    """Decode to the disk, so that images need not fit into memory; None where that cannot be done."""
    shape = (len(files), 3, size, size)
    if not decoded_cache.has_room(place, math.prod(shape)):
        return None
    decoded = _Decoded(files, size, workers, progress)

    def pieces() -> Iterator[Pixels]:
        good = iter(decoded)
        while piece := list(itertools.islice(good, PIECE)):
            yield np.stack(piece)
        # The file's length is declared before anyone knows what is good: places are left over at its end.
        yield np.zeros((len(decoded.skipped), *shape[1:]), np.uint8)

    try:
        # `kept` is complete when the notes are written: after the pieces.
        array = store.Array(shape, pieces())
        store.save(place, name, {"images": len(files)}, {"kept": decoded.kept}, {"pixels": array})
    except UserError:
        return None
    decoded_cache.trim(place, name)
    return _open(place, name, files, size)
