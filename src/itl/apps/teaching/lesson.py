"""A lesson: an image folder that is learned as one task."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from itl.apps.images import (
    ImageFolder,
    SkippedPath,
    UnreadableImage,
    image_dimensions,
    printable_path,
    read_images,
    scan_folder,
)
from itl.errors import UserError
from itl.streams import Progress

MEASURED_IMAGES = 32  # images whose dimensions are read to choose a model's image size


@dataclass(frozen=True)
class DecodedImages:
    """Images read from files, uint8 `[n, 3, size, size]`, and the class name of each."""

    pixels: Tensor
    labels: list[str]

    def __len__(self) -> int:
        return len(self.labels)

    def class_counts(self) -> dict[str, int]:
        """Return the number of images of each class."""
        return dict(Counter(self.labels))

    def of_classes(self, names: set[str]) -> DecodedImages:
        """Return the images of these classes."""
        rows = [row for row, name in enumerate(self.labels) if name in names]
        return self if len(rows) == len(self) else DecodedImages(self.pixels[rows], [self.labels[row] for row in rows])


@dataclass(frozen=True)
class LessonImages:
    """A lesson's decoded images, and the files that were skipped."""

    train: DecodedImages
    test: DecodedImages
    skipped: list[SkippedPath] = field(default_factory=list)


@dataclass(frozen=True)
class Lesson:
    """An image folder that is learned as one task. No image is decoded before `read`.

    Attributes:
        folder: The image folder.
        files: Its files by class, split into training and test files.
    """

    folder: Path
    files: ImageFolder

    @classmethod
    def from_folder(
        cls,
        folder: str | os.PathLike[str],
        test: bool = True,
        train_only: Mapping[str, Collection[str]] | None = None,
    ) -> Lesson:
        """Scan an image folder.

        Args:
            folder: The image folder.
            test: Use the folder's `test/`, or hold out test images; otherwise all images are for training.
            train_only: See `ImageFolder.with_held_out`.

        Raises:
            UserError: If the folder is missing, is a model folder or contains no class.
        """
        files = scan_folder(folder)
        return cls(Path(folder), files.with_held_out(train_only) if test else files.without_test())

    @property
    def name(self) -> str:
        """The folder's name."""
        return printable_path(self.folder.name or self.folder.resolve().name)

    @property
    def held_out(self) -> bool:
        """Whether the test images were held out, as opposed to coming from the folder's own `test/`."""
        return bool(self.files.test) and not self.files.has_test

    def median_side(self) -> int | None:
        """Return the median of the shorter sides of up to `MEASURED_IMAGES` images; None if none can be read."""
        files = [file for files in self.files.train.values() for file in files]
        sides = []
        for index in np.linspace(0, len(files) - 1, min(MEASURED_IMAGES, len(files))).round().astype(int):
            try:
                sides.append(min(image_dimensions(files[index])))
            except UnreadableImage:
                continue
        return int(np.median(sides)) if sides else None

    def read(self, size: int, progress: Progress | None = None, interpolation: str = "bilinear") -> LessonImages:
        """Decode all images to `size` x `size` pixels; unreadable files are skipped.

        Raises:
            UserError: If no training image can be read.
        """
        skipped = list(self.files.skipped)
        train, unreadable = _read(self.files.train, size, interpolation, progress)
        skipped += unreadable
        for name in self.files.train.keys() - set(train.labels):
            skipped.append(SkippedPath(self.folder / name, "no image of this class can be read"))
        if not len(train):
            raise UserError(
                f"{printable_path(self.folder)} contains no readable image; the first problem is {skipped[0]}"
            )
        test, unreadable = _read(self.files.test, size, interpolation, progress)
        return LessonImages(train, test, skipped + unreadable)

    def sample(self, size: int, count: int, interpolation: str = "bilinear") -> LessonImages:
        """Decode about `count` training images, spread over the classes; all of them if none of these can be read.

        Raises:
            UserError: If no training image can be read.
        """
        pairs = [(name, file) for name, files in self.files.train.items() for file in files]
        chosen: dict[str, list[Path]] = {}
        for index in np.linspace(0, len(pairs) - 1, min(count, len(pairs))).round().astype(int):
            chosen.setdefault(pairs[index][0], []).append(pairs[index][1])
        images, unreadable = _read(chosen, size, interpolation, None)
        if not len(images):
            return self.read(size, interpolation=interpolation)
        return LessonImages(images, DecodedImages(images.pixels[:0], []), [*self.files.skipped, *unreadable])

    def read_test(self, size: int, interpolation: str = "bilinear") -> DecodedImages:
        """Decode the test images only."""
        return _read(self.files.test, size, interpolation, None)[0]


def _read(
    classes: dict[str, list[Path]], size: int, interpolation: str, progress: Progress | None
) -> tuple[DecodedImages, list[SkippedPath]]:
    """Decode the images of some classes, one class after another; return them and the skipped files."""
    pairs = [(name, file) for name, files in classes.items() for file in files]
    decoded = read_images([file for _, file in pairs], size, progress=progress, interpolation=interpolation)
    return DecodedImages(torch.from_numpy(decoded.pixels), [pairs[k][0] for k in decoded.indices]), decoded.skipped
