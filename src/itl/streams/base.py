"""Data structures of streams: labeled images, tasks, streams, and descriptions of datasets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from itl.errors import UserError

if TYPE_CHECKING:  # torch is imported on first use, because datasets are listed without it
    from torch import Tensor

Progress = Callable[[int, int | None], None]
"""Called with (done, total) while bytes are downloaded or images are decoded; total is None if it is unknown."""


@dataclass(frozen=True, eq=False, repr=False)
class Images:
    """Labeled uint8 images, possibly a selection of rows of a larger, memory-mapped array.

    Attributes:
        source: uint8 `[M, C, H, W]`.
        labels: int64 `[N]`.
        rows: Rows of `source`, int64 `[N]`, or None for all of them (N = M).

    Raises:
        UserError: A tensor has another type or shape.
    """

    source: Tensor
    labels: Tensor
    rows: Tensor | None = None

    def __post_init__(self) -> None:
        """Check types and shapes."""
        import torch

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
        """Number of images."""
        return len(self.labels)

    def __repr__(self) -> str:
        """Number and shape of the images."""
        return f"Images({len(self)}, shape={tuple(self.source.shape[1:])})"

    @property
    def pixels(self) -> Tensor:
        """All images, uint8 `[N, C, H, W]`: a view of the source if the rows are consecutive, else a copy."""
        if self.rows is None:
            return self.source
        if len(self) == 0 or bool((self.rows.diff() == 1).all()):
            start = int(self.rows[0]) if len(self) else 0
            return self.source[start : start + len(self)]
        return self.source.index_select(0, self.rows)

    def gather(self, index: Tensor) -> Tensor:
        """Images at `index` (int64 `[k]`), uint8 `[k, C, H, W]`, without reading the others."""
        return self.source.index_select(0, index if self.rows is None else self.rows[index])

    @staticmethod
    def from_numpy(pixels: np.ndarray, labels: np.ndarray) -> Images:
        """Images from uint8 `[N, C, H, W]` and integers `[N]`; the pixels are not copied."""
        import torch

        return Images(torch.from_numpy(pixels), torch.from_numpy(labels.astype(np.int64)))

    @staticmethod
    def join(parts: Sequence[Images]) -> Images:
        """Concatenate images; no pixels are copied if all parts have the same source."""
        import torch

        labels = torch.cat([part.labels for part in parts])
        source = parts[0].source
        if any(part.source is not source for part in parts):
            return Images(torch.cat([part.pixels for part in parts]), labels)
        all_rows = torch.arange(len(source))
        return Images(source, labels, torch.cat([all_rows if part.rows is None else part.rows for part in parts]))

    def take(self, index: Tensor) -> Images:
        """Images at `index` (int64 `[k]`) with their labels; no pixels are copied."""
        return Images(self.source, self.labels[index], index if self.rows is None else self.rows[index])


@dataclass(frozen=True)
class Traits:
    """Properties of a dataset that augmentation and normalization need.

    Attributes:
        mean: Mean of each channel, for pixels in 0..1.
        std: Standard deviation of each channel, for pixels in 0..1.
        flip: Whether a mirrored image keeps its label.
        padding: Padding of random crops.
        policy: Name of the AutoAugment policy that suits the images, or None.
        tasks: Usual number of tasks.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    flip: bool
    padding: int
    policy: str | None
    tasks: int


@dataclass(frozen=True, eq=False, repr=False)
class Task:
    """One task of a stream. It contains everything that a learner needs to learn it.

    Attributes:
        index: Index in the stream, from 0.
        classes: Output columns of its classes.
        train: Training images; their labels are output columns.
        test: Test images (or validation images, see `Stream.split`).
        stream: Name of the stream.
        traits: Properties of the dataset.
        validation: Images that are not trained on and decide when training ends (`specialist.patience`), or None.
    """

    index: int
    classes: tuple[int, ...]
    train: Images
    test: Images
    stream: str
    traits: Traits
    validation: Images | None = None

    def __repr__(self) -> str:
        """Stream, index, classes and numbers of images."""
        counts = f"train={len(self.train)}, test={len(self.test)}"
        return f"Task({self.stream!r}, index={self.index}, classes={self.classes}, {counts})"


@dataclass(frozen=True, eq=False, repr=False)
class Stream:
    """A sequence of tasks with disjoint classes. Iterate over it to get the tasks.

    A label is an output column: the position of its class in the stream's class order. The columns of a task are
    consecutive.

    Attributes:
        name: Name of the stream.
        class_names: Names of the classes, in column order.
        tasks: The tasks.
        mean: Mean of each channel, for pixels in 0..1.
        std: Standard deviation of each channel, for pixels in 0..1.
        flip: Whether a mirrored image keeps its label.
        padding: Padding of random crops.
        policy: Name of the AutoAugment policy that suits the images, or None.
        split: What the `test` images of the tasks are, "test" or "validation".
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
        """Number of classes of all tasks."""
        return len(self.class_names)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channels, height, width) of an image."""
        channels, height, width = self.tasks[0].train.source.shape[1:]
        return channels, height, width

    def __iter__(self) -> Iterator[Task]:
        """Iterate over the tasks."""
        return iter(self.tasks)

    def __len__(self) -> int:
        """Number of tasks."""
        return len(self.tasks)

    def __repr__(self) -> str:
        """Name, numbers of tasks and classes, image shape and split."""
        counts = f"tasks={len(self)}, classes={self.classes}"
        return f"Stream({self.name!r}, {counts}, shape={self.shape}, split={self.split!r})"


@dataclass(frozen=True, eq=False)
class Dataset:
    """A dataset before it is split into tasks.

    Attributes:
        train: Training images; their labels are indices of `class_names`.
        test: Test images.
        class_names: Names of the classes, in the dataset's order.
        traits: Properties of the dataset.
    """

    train: Images
    test: Images
    class_names: tuple[str, ...]
    traits: Traits


@dataclass(frozen=True)
class DatasetSource:
    """A dataset in the registry: facts that need no file, and a function that reads it.

    Attributes:
        name: Name of the stream.
        classes: Number of classes.
        shape: (channels, height, width) of an image.
        train: Number of training images.
        test: Number of test images.
        files: Which files to put where, for the user.
        traits: Properties of the dataset.
        read: `read(root, download, progress)` returns the dataset found in the folder `root`; if it is missing and
            `download` is true, it is downloaded first.
    """

    name: str
    classes: int
    shape: tuple[int, int, int]
    train: int
    test: int
    files: str
    traits: Traits
    read: Callable[[Path, bool, Progress | None], Dataset]
