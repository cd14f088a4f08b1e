"""What a stream is made of: labelled images, the tasks that share them out, and what is known about a dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from itl.errors import UserError

Progress = Callable[[int, int | None], None]
"""Called with (done, total) while bytes are downloaded or images decoded; total is None where nobody knows it."""


@dataclass(frozen=True, eq=False)
class Images:
    """Labelled images kept as uint8, possibly a lazy selection of a larger, memory-mapped source.

    source: uint8 [M,C,H,W]; labels: int64 [N]; rows: int64 [N], which rows of source, or None for all of them (N = M).
    """

    source: Tensor
    labels: Tensor
    rows: Tensor | None = None

    def __post_init__(self) -> None:
        if self.source.dtype != torch.uint8 or self.source.ndim != 4:
            kind = f"{self.source.dtype} {list(self.source.shape)}"
            raise UserError(
                f"images must be uint8 [N,C,H,W], not {kind}; itl.streams.from_arrays converts other layouts"
            )
        count = len(self.source) if self.rows is None else len(self.rows)
        if self.labels.dtype != torch.int64 or self.labels.shape != (count,):
            kind = f"{self.labels.dtype} {list(self.labels.shape)}"
            raise UserError(f"labels must be int64 [{count}], one for each image, not {kind}")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def pixels(self) -> Tensor:
        """All images, uint8 [N,C,H,W]: a view of the source where its rows follow one another, else a copy."""
        if self.rows is None:
            return self.source
        if len(self) == 0 or bool((self.rows.diff() == 1).all()):
            start = int(self.rows[0]) if len(self) else 0
            return self.source[start : start + len(self)]
        return self.source.index_select(0, self.rows)

    def gather(self, index: Tensor) -> Tensor:
        """The images at `index` (int64 [k]), uint8 [k,C,H,W], without touching the others."""
        return self.source.index_select(0, index if self.rows is None else self.rows[index])

    @staticmethod
    def join(parts: Sequence[Images]) -> Images:
        """Several as one, in order; parts of one source share it and no pixel is copied."""
        labels = torch.cat([part.labels for part in parts])
        source = parts[0].source
        if any(part.source is not source for part in parts):
            return Images(torch.cat([part.pixels for part in parts]), labels)
        every = torch.arange(len(source))
        return Images(source, labels, torch.cat([every if part.rows is None else part.rows for part in parts]))

    def take(self, index: Tensor) -> Images:
        """The images at `index` (int64 [k]) with their labels; no pixel is copied."""
        return Images(self.source, self.labels[index], index if self.rows is None else self.rows[index])


@dataclass(frozen=True)
class Traits:
    """What does not follow from a dataset's pixels: see `Stream`; `tasks` is the usual number of tasks."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    flip: bool
    padding: int
    policy: str | None
    tasks: int


@dataclass(frozen=True, eq=False)
class Task:
    """One dataset of the sequence. `classes` are its output columns; the labels of its images are columns too.

    `stream` and `traits` say where it comes from, so that a task alone is enough to teach a learner.
    """

    index: int
    classes: tuple[int, ...]
    train: Images
    test: Images
    stream: str
    traits: Traits


@dataclass(frozen=True, eq=False)
class Stream:
    """A sequence of tasks with disjoint classes, and what an augmentation needs to know about the images.

    A label is an output column, the place of its class in this stream's class order, so a task's columns are
    consecutive; `class_names` is in column order. mean, std: of the pixels in 0..1, one for each channel.
    flip: whether a mirrored image keeps its label; padding: the crop padding that suits the images;
    policy: their natural AutoAugment policy; split: what `test` holds, "test" or "validation".
    """

    name: str
    class_names: tuple[str, ...]
    tasks: tuple[Task, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    flip: bool
    padding: int
    policy: str | None
    split: str

    @property
    def classes(self) -> int:
        """The number of classes in all tasks together."""
        return len(self.class_names)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of one image."""
        channels, height, width = self.tasks[0].train.source.shape[1:]
        return channels, height, width

    def __iter__(self) -> Iterator[Task]:
        return iter(self.tasks)

    def __len__(self) -> int:
        return len(self.tasks)


@dataclass(frozen=True, eq=False)
class Dataset:
    """A dataset as read, not yet cut into tasks. Labels are places in `class_names`, the dataset's own class order."""

    train: Images
    test: Images
    class_names: tuple[str, ...]
    traits: Traits


@dataclass(frozen=True)
class DatasetSource:
    """A dataset the registry knows: facts that need no file to be opened, and how to read it.

    shape: (C, H, W); train, test: numbers of images; files: where to put what, for people.
    read(root, download, progress): the dataset found under root, fetched first if it is not there and download is set.
    """

    name: str
    classes: int
    shape: tuple[int, int, int]
    train: int
    test: int
    files: str
    traits: Traits
    read: Callable[[Path, bool, Progress | None], Dataset]
