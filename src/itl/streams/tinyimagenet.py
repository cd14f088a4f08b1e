"""seq-tinyimagenet: 200 classes of 64x64 images, from the official zip file or from its unpacked folder.

Classes are in the line order of wnids.txt, as in the benchmark, not sorted. The validation images are the test set,
because the labels of the real test set were never published. The JPEG images are decoded once into a cache next to the
dataset, in class order, so that with the default class order a task is a slice of the memory-mapped file. When the
images are decoded, a zip file is checked by its md5, and a folder by the number of images of every class and by their
size.
"""

from __future__ import annotations

import io
import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from itl.errors import UserError
from itl.streams import array_cache
from itl.streams import download as downloads
from itl.streams.base import Dataset, DatasetSource, Images, Progress, Traits
from itl.streams.checked_files import check_md5, md5_of_file, missing_error
from itl.streams.folder_or_zip import DirectoryTree, FileTree, ZipTree, fingerprint

NAME = "seq-tinyimagenet"
FOLDER = "tiny-imagenet-200"
ARCHIVE = f"{FOLDER}.zip"
MD5 = "90528d7ca1a48142e341f4ef8d21d0de"
URL = f"http://cs231n.stanford.edu/{ARCHIVE}"
CLASSES, TRAIN_PER_CLASS, TEST_PER_CLASS, SIDE = 200, 500, 50, 64
MAX_DIGITS = 9  # of an image's number; Python converts no more than some thousand
_FILES = f"{ARCHIVE} or the folder {FOLDER}/"
TRAITS = Traits((0.4802, 0.4480, 0.3975), (0.2770, 0.2691, 0.2821), flip=True, padding=4, policy="imagenet", tasks=10)


def read(root: Path, download: bool, progress: Progress | None) -> Dataset:
    """Read the dataset from `root`, which may be the data folder, the dataset's folder or its zip file.

    The first call decodes the images into `.itl-cache` in that folder.
    """
    path = locate(root)
    if path is None and download:
        path = downloads.fetch(URL, root / ARCHIVE, MD5, progress)
    if path is None:
        raise missing_error(NAME, root, _FILES)
    folder = (root if root.is_dir() else root.parent) / ".itl-cache"
    made_from = fingerprint(path, ["wnids.txt", "words.txt", "val/val_annotations.txt"])
    cached = array_cache.load(folder, "tinyimagenet", made_from)
    if cached is None:
        _decode_all(path, folder, made_from, progress)
        cached = array_cache.load(folder, "tinyimagenet", made_from)
    if cached is None:
        raise UserError(f"{path} changed while it was decoded, or {folder} is damaged; run the same command again")
    arrays, notes = cached
    import torch  # deferred, because streams are listed without it

    train, test = (
        Images(arrays[part], torch.arange(CLASSES).repeat_interleave(each))
        for part, each in (("train", TRAIN_PER_CLASS), ("test", TEST_PER_CLASS))
    )
    return Dataset(train, test, tuple(notes["class_names"]), TRAITS)


def locate(root: Path) -> Path | None:
    """The zip file or the folder; the zip file first, because its md5 covers everything."""
    for archive in (root / ARCHIVE, root):
        if archive.name == ARCHIVE and archive.is_file():
            return archive
    for folder in (root / FOLDER, root):
        if folder.is_dir() and (folder.name == FOLDER or (folder / "wnids.txt").exists()):
            return folder
    return None


def _decode_all(path: Path, folder: Path, made_from: dict[str, Any], progress: Progress | None) -> None:
    if path.is_file():
        check_md5(path, md5_of_file(path), MD5)
    with ZipTree(path, FOLDER) if path.is_file() else DirectoryTree(path) as tree:
        wnids = _wnids(tree)
        groups = {"train": _train_paths(tree, wnids), "test": _test_paths(tree, wnids)}
        total, done = sum(len(paths) for paths in groups["train"] + groups["test"]), 0

        def decoded(part: str) -> Iterator[npt.NDArray[np.uint8]]:
            nonlocal done
            for chunk in _decode(tree, groups[part]):
                done += len(chunk)
                if progress:
                    progress(done, total)
                yield chunk

        arrays = {
            part: array_cache.ChunkedArray((sum(map(len, paths)), 3, SIDE, SIDE), decoded(part))
            for part, paths in groups.items()
        }
        array_cache.save(folder, "tinyimagenet", made_from, {"class_names": _class_names(tree, wnids)}, arrays)


def _wnids(tree: FileTree) -> list[str]:
    wnids = tree.text("wnids.txt").split()
    if len(wnids) != CLASSES or len(set(wnids)) != CLASSES:
        raise UserError(f"{tree.name('wnids.txt')} must name {CLASSES} classes once each; it holds {len(wnids)} names")
    return wnids


def _class_names(tree: FileTree, wnids: list[str]) -> list[str]:
    """First synonym of every class in words.txt; names that two classes share are followed by the wnid."""
    words = dict(line.split("\t", 1) for line in tree.text("words.txt").splitlines() if "\t" in line)
    names = [words.get(wnid, wnid).split(",")[0].strip() for wnid in wnids]
    return [f"{name} ({wnid})" if names.count(name) > 1 else name for name, wnid in zip(names, wnids, strict=True)]


def _train_paths(tree: FileTree, wnids: list[str]) -> list[list[str]]:
    """Paths of the training images of every class, sorted by number (_2 before _10)."""
    groups = []
    for wnid in wnids:
        names = [name for name in tree.list(f"train/{wnid}/images") if name.endswith(".JPEG")]
        if len(names) != TRAIN_PER_CLASS:
            where = tree.name(f"train/{wnid}/images")
            raise UserError(f"{where} holds {len(names)} of {TRAIN_PER_CLASS} images; unpack {ARCHIVE} again")
        groups.append([f"train/{wnid}/images/{name}" for name in sorted(names, key=lambda name: _number(tree, name))])
    return groups


def _test_paths(tree: FileTree, wnids: list[str]) -> list[list[str]]:
    """Paths of the validation images of every class by val_annotations.txt, sorted by number."""
    table = "val/val_annotations.txt"
    groups: dict[str, list[str]] = {wnid: [] for wnid in wnids}
    for line in tree.text(table).splitlines():
        name, wnid, *_ = [*line.split("\t"), ""]
        if wnid not in groups:
            raise UserError(f"{tree.name(table)} is damaged at '{line:.40}'; unpack {ARCHIVE} again")
        groups[wnid].append(name)
    for wnid, names in groups.items():
        if len(names) != TEST_PER_CLASS:
            raise UserError(
                f"{tree.name(table)} names {len(names)} of {TEST_PER_CLASS} images of {wnid}; unpack {ARCHIVE} again"
            )
    return [
        [f"val/images/{name}" for name in sorted(names, key=lambda n: _number(tree, n))] for names in groups.values()
    ]


def _number(tree: FileTree, name: str) -> int:
    digits = name.removesuffix(".JPEG").rpartition("_")[2]
    if not digits.isdecimal() or len(digits) > MAX_DIGITS:
        raise UserError(f"{tree.name(name)} is not named like a TinyImageNet image; unpack {ARCHIVE} again")
    return int(digits)


def _decode(tree: FileTree, groups: list[list[str]]) -> Iterator[npt.NDArray[np.uint8]]:
    """Images of each group in order, uint8 `[n, 3, 64, 64]`. Pillow releases the GIL while it decodes."""
    workers = min(8, os.cpu_count() or 1)
    pending: deque[Future[npt.NDArray[np.uint8]]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        try:
            for paths in groups:
                pending.append(pool.submit(lambda paths: np.stack([_image(tree, path) for path in paths]), paths))
                if len(pending) > 2 * workers:  # bounds how many decoded images are held
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # stop decoding after an invalid image


def _image(tree: FileTree, path: str) -> npt.NDArray[np.uint8]:
    """An image as RGB, uint8 `[3, 64, 64]`."""
    data = tree.read(path)
    try:
        with Image.open(io.BytesIO(data), formats=["JPEG"]) as image:
            size = image.size
            # The size is known before the image is decoded, which may take much memory and time.
            pixels = np.asarray(image.convert("RGB")) if size == (SIDE, SIDE) else None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise UserError(f"{tree.name(path)} is not a valid JPEG; unpack {ARCHIVE} again") from error
    if pixels is None:
        raise UserError(f"{tree.name(path)} is {size[0]}x{size[1]}, not {SIDE}x{SIDE}; unpack {ARCHIVE} again")
    return pixels.transpose(2, 0, 1)


SOURCE = DatasetSource(
    name=NAME,
    classes=CLASSES,
    shape=(3, SIDE, SIDE),
    train=CLASSES * TRAIN_PER_CLASS,
    test=CLASSES * TEST_PER_CLASS,
    files=f"{_FILES} in the data folder",
    traits=TRAITS,
    read=read,
)
