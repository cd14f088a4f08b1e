"""seq-tinyimagenet: 200 classes of 64x64 images, from the official zip or the folder it unpacks to.

Classes stand in the line order of wnids.txt, as in the benchmark, not sorted; the validation images are the test set,
since the labels of the real one were never published. The JPEGs are decoded once into a cache beside the dataset, in
class order, so that under the default order a task is one slice of the memory-mapped file. The zip is checked by md5
when it is decoded; of a folder the number of images in every class is, and that each is a 64x64 JPEG.
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
import torch
from PIL import Image

from itl.errors import UserError
from itl.streams import cache
from itl.streams import download as downloads
from itl.streams.base import Dataset, DatasetSource, Images, Progress, Traits
from itl.streams.checked_files import check_md5, md5_of_file, missing
from itl.streams.file_tree import DirectoryTree, FileTree, ZipTree, fingerprint

NAME = "seq-tinyimagenet"
FOLDER = "tiny-imagenet-200"
ARCHIVE = f"{FOLDER}.zip"
MD5 = "90528d7ca1a48142e341f4ef8d21d0de"
ADDRESS = f"http://cs231n.stanford.edu/{ARCHIVE}"
CLASSES, TRAIN_EACH, TEST_EACH, SIDE = 200, 500, 50, 64
_FILES = f"{ARCHIVE} or the folder {FOLDER}/"
TRAITS = Traits((0.4802, 0.4480, 0.3975), (0.2770, 0.2691, 0.2821), flip=True, padding=4, policy="imagenet", tasks=10)


def read(root: Path, download: bool, progress: Progress | None) -> Dataset:
    """The dataset under `root` (or root being its zip or folder), decoded into `root/.itl-cache` the first time."""
    place = locate(root)
    if place is None and download:
        place = downloads.fetch(ADDRESS, root / ARCHIVE, MD5, progress)
    if place is None:
        raise missing(NAME, root, _FILES)
    folder = (root if root.is_dir() else root.parent) / ".itl-cache"
    made_from = fingerprint(place, ["wnids.txt", "words.txt", "val/val_annotations.txt"])
    kept = cache.load(folder, "tinyimagenet", made_from)
    if kept is None:
        _decode_all(place, folder, made_from, progress)
        kept = cache.load(folder, "tinyimagenet", made_from)
    if kept is None:
        raise UserError(f"{place} changed while it was decoded, or {folder} is damaged; run the same again")
    arrays, notes = kept
    train, test = (
        Images(arrays[part], torch.arange(CLASSES).repeat_interleave(each))
        for part, each in (("train", TRAIN_EACH), ("test", TEST_EACH))
    )
    return Dataset(train, test, tuple(notes["class_names"]), TRAITS)


def locate(root: Path) -> Path | None:
    """The zip or the folder; the zip first, since its md5 vouches for all of it."""
    for archive in (root / ARCHIVE, root):
        if archive.name == ARCHIVE and archive.is_file():
            return archive
    for folder in (root / FOLDER, root):
        if folder.is_dir() and (folder.name == FOLDER or (folder / "wnids.txt").exists()):
            return folder
    return None


def _decode_all(place: Path, folder: Path, made_from: dict[str, Any], progress: Progress | None) -> None:
    if place.is_file():
        check_md5(place, md5_of_file(place), MD5)
    with ZipTree(place, FOLDER) if place.is_file() else DirectoryTree(place) as tree:
        wnids = _wnids(tree)
        groups = {"train": _train_paths(tree, wnids), "test": _test_paths(tree, wnids)}
        total, done = sum(len(paths) for paths in groups["train"] + groups["test"]), 0

        def decoded(part: str) -> Iterator[npt.NDArray[np.uint8]]:
            nonlocal done
            for piece in _decode(tree, groups[part]):
                done += len(piece)
                if progress:
                    progress(done, total)
                yield piece

        arrays = {
            part: cache.Array((sum(map(len, paths)), 3, SIDE, SIDE), decoded(part)) for part, paths in groups.items()
        }
        cache.save(folder, "tinyimagenet", made_from, {"class_names": _class_names(tree, wnids)}, arrays)


def _wnids(tree: FileTree) -> list[str]:
    wnids = tree.text("wnids.txt").split()
    if len(wnids) != CLASSES or len(set(wnids)) != CLASSES:
        raise UserError(f"{tree.name('wnids.txt')} must name {CLASSES} classes once each; it holds {len(wnids)} names")
    return wnids


def _class_names(tree: FileTree, wnids: list[str]) -> list[str]:
    """The first synonym words.txt gives for every class; a name that two classes share carries the wnid too."""
    words = dict(line.split("\t", 1) for line in tree.text("words.txt").splitlines() if "\t" in line)
    names = [words.get(wnid, wnid).split(",")[0].strip() for wnid in wnids]
    return [f"{name} ({wnid})" if names.count(name) > 1 else name for name, wnid in zip(names, wnids, strict=True)]


def _train_paths(tree: FileTree, wnids: list[str]) -> list[list[str]]:
    """For every class the paths of its training images by number (_2 before _10)."""
    groups = []
    for wnid in wnids:
        names = [name for name in tree.list(f"train/{wnid}/images") if name.endswith(".JPEG")]
        if len(names) != TRAIN_EACH:
            where = tree.name(f"train/{wnid}/images")
            raise UserError(f"{where} holds {len(names)} of {TRAIN_EACH} images; unpack {ARCHIVE} again")
        groups.append([f"train/{wnid}/images/{name}" for name in sorted(names, key=lambda name: _number(tree, name))])
    return groups


def _test_paths(tree: FileTree, wnids: list[str]) -> list[list[str]]:
    """For every class the paths of its validation images by number, as val_annotations.txt assigns them."""
    table = "val/val_annotations.txt"
    groups: dict[str, list[str]] = {wnid: [] for wnid in wnids}
    for line in tree.text(table).splitlines():
        name, wnid, *_ = [*line.split("\t"), ""]
        if wnid not in groups:
            raise UserError(f"{tree.name(table)} is damaged at '{line:.40}'; unpack {ARCHIVE} again")
        groups[wnid].append(name)
    for wnid, names in groups.items():
        if len(names) != TEST_EACH:
            raise UserError(
                f"{tree.name(table)} names {len(names)} of {TEST_EACH} images of {wnid}; unpack {ARCHIVE} again"
            )
    return [
        [f"val/images/{name}" for name in sorted(names, key=lambda n: _number(tree, n))] for names in groups.values()
    ]


def _number(tree: FileTree, name: str) -> int:
    digits = name.removesuffix(".JPEG").rpartition("_")[2]
    if not digits.isdecimal():
        raise UserError(f"{tree.name(name)} is not named like a TinyImageNet image; unpack {ARCHIVE} again")
    return int(digits)


def _decode(tree: FileTree, groups: list[list[str]]) -> Iterator[npt.NDArray[np.uint8]]:
    """Each group's images, uint8 [n,3,64,64], in order. Threads do: Pillow decodes outside the interpreter's lock."""
    workers = min(8, os.cpu_count() or 1)
    waiting: deque[Future[npt.NDArray[np.uint8]]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        try:
            for paths in groups:
                waiting.append(pool.submit(lambda paths: np.stack([_image(tree, path) for path in paths]), paths))
                if len(waiting) > 2 * workers:  # no further ahead of the disk than this
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # after a bad image the rest is not worth decoding


def _image(tree: FileTree, path: str) -> npt.NDArray[np.uint8]:
    """One image, uint8 [3,64,64]; grey ones become RGB."""
    data = tree.read(path)
    try:
        with Image.open(io.BytesIO(data), formats=["JPEG"]) as image:
            pixels = np.asarray(image.convert("RGB"))
    except (OSError, SyntaxError, ValueError) as error:
        raise UserError(f"{tree.name(path)} is not a sound JPEG; unpack {ARCHIVE} again") from error
    if pixels.shape != (SIDE, SIDE, 3):
        raise UserError(
            f"{tree.name(path)} is {pixels.shape[1]}x{pixels.shape[0]}, not {SIDE}x{SIDE}; unpack {ARCHIVE} again"
        )
    return pixels.transpose(2, 0, 1)


SOURCE = DatasetSource(
    name=NAME,
    classes=CLASSES,
    shape=(3, SIDE, SIDE),
    train=CLASSES * TRAIN_EACH,
    test=CLASSES * TEST_EACH,
    files=f"{_FILES} in the data folder",
    traits=TRAITS,
    read=read,
)
