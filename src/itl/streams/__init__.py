"""Where tasks come from: known datasets cut into tasks, arrays in memory, any torch Dataset."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from itl.streams.arrays import from_arrays, from_dataset
from itl.streams.base import Dataset, DatasetSource, Images, Progress, Stream, Task, Traits
from itl.streams.checked_files import cannot_read
from itl.streams.registry import describe, find, names
from itl.streams.split import build, check_split, class_order, task_sizes

__all__ = [
    "Dataset",
    "DatasetSource",
    "Images",
    "Progress",
    "Stream",
    "Task",
    "Traits",
    "build",
    "check",
    "describe",
    "from_arrays",
    "from_dataset",
    "load",
    "names",
]


def check(
    name: str,
    *,
    tasks: int | None = None,
    order: Sequence[int] | None = None,
    order_seed: int | None = None,
    split: str = "test",
) -> None:
    """Whether `load` could make such a stream of the right files: what is wrong is said before minutes of reading."""
    source = find(name)
    check_split(split)
    class_order(source.classes, order, order_seed)
    task_sizes(source.classes, source.traits.tasks if tasks is None else tasks)


def load(
    name: str,
    root: str | os.PathLike[str] = "data",
    *,
    tasks: int | None = None,
    order: Sequence[int] | None = None,
    order_seed: int | None = None,
    split: str = "test",
    download: bool = False,
    progress: Progress | None = None,
) -> Stream:
    """The stream `name` from the files under `root`.

    tasks: how many (default: the usual number; classes are spread evenly, the first tasks get one more if need be).
    order: the dataset's class numbers in the order to teach them; order_seed: draw that order, the same for ever.
    split: "test", or "validation" to evaluate on a fixed tenth of the training set, taken out of it.
    download: fetch the official files if they are not there; progress: called with (done, total) while that, or the
    first decoding of images, goes on.
    """
    check(name, tasks=tasks, order=order, order_seed=order_seed, split=split)
    source = find(name)
    root = Path(root).expanduser()
    try:
        data = source.read(root, download, progress)
    except OSError as error:
        raise cannot_read(Path(error.filename or root), error) from error
    return build(name, data, tasks=tasks, order=order, order_seed=order_seed, split=split)
