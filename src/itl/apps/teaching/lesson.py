"""A folder as a lesson: which images of which classes are learned, which are held out to test on, and what is wrong."""

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
    is_model_folder,
    printable_path,
    read_images,
    scan_folder,
)
from itl.errors import UserError
from itl.streams import Progress

PROBED = 32  # images looked at to tell the size of a folder's


@dataclass(frozen=True)
class LabeledImages:
    """Images uint8 `[n, 3, size, size]` and the class name of each."""

    pixels: Tensor
    labels: list[str]

    def __len__(self) -> int:
        return len(self.labels)

    def counts(self) -> dict[str, int]:
        """How many images of each class."""
        return dict(Counter(self.labels))

    def of(self, names: set[str]) -> LabeledImages:
        """The images of these classes."""
        rows = [row for row, name in enumerate(self.labels) if name in names]
        return self if len(rows) == len(self) else LabeledImages(self.pixels[rows], [self.labels[row] for row in rows])


@dataclass(frozen=True)
class LessonImages:
    """A lesson's images, decoded."""

    train: LabeledImages
    test: LabeledImages
    skipped: list[SkippedPath] = field(default_factory=list)


@dataclass(frozen=True)
class Lesson:
    """A folder that is a task. Nothing is decoded before `read`."""

    folder: Path
    files: ImageFolder

    @classmethod
    def of(
        cls,
        folder: str | os.PathLike[str],
        test: bool = True,
        learned: Mapping[str, Collection[str]] | None = None,
    ) -> Lesson:
        """The lesson in a folder; without `test`, all of it is learned from. See `ImageFolder.with_held_out`."""
        if not os.fspath(folder):
            raise UserError("a folder's name is empty; give folders of images to learn from")
        if is_model_folder(Path(folder)):
            raise UserError(f"{printable_path(Path(folder))} is a model folder; give folders of images to learn from")
        found = scan_folder(folder)
        if test:
            return cls(Path(folder), found.with_held_out(learned))
        return cls(Path(folder), ImageFolder(found.folder, found.train, {}, found.skipped, found.has_test))

    @property
    def name(self) -> str:
        """What to call it."""
        return printable_path(self.folder.name or self.folder.resolve().name)

    @property
    def held_out(self) -> bool:
        """Whether the test images were taken out of the folder's own, which brings none."""
        return bool(self.files.test) and not self.files.has_test

    def side(self) -> int | None:
        """The middle one of its images' shorter sides, by a few of them; None where none can be read."""
        files = [file for files in self.files.train.values() for file in files]
        sides = []
        for place in np.linspace(0, len(files) - 1, min(PROBED, len(files))).round().astype(int):
            try:
                sides.append(min(image_dimensions(files[place])))
            except UnreadableImage:
                continue
        return int(np.median(sides)) if sides else None

    def read(self, size: int, progress: Progress | None = None) -> LessonImages:
        """All its images. Bad ones are listed; a lesson without a single good one is refused."""
        problems = list(self.files.skipped)
        train, bad = _read(self.files.train, size, progress)
        problems += bad
        for name in self.files.train.keys() - set(train.labels):
            problems.append(SkippedPath(self.folder / name, "no image of this class can be read; it is left out"))
        if not len(train):
            raise UserError(
                f"{printable_path(self.folder)} contains no readable image; the first problem is {problems[0]}"
            )
        test, bad = _read(self.files.test, size, progress)
        return LessonImages(train, test, problems + bad)

    def read_test(self, size: int) -> LabeledImages:
        """Its test images alone."""
        return _read(self.files.test, size, None)[0]


def _read(
    classes: dict[str, list[Path]], size: int, progress: Progress | None
) -> tuple[LabeledImages, list[SkippedPath]]:
    """The images of some classes, one class after another, and what is wrong with the others."""
    files = [(name, file) for name, files in classes.items() for file in files]
    pixels, kept, problems = read_images([file for _, file in files], size, progress=progress)
    return LabeledImages(torch.from_numpy(pixels), [files[k][0] for k in kept]), problems
