"""Load a stream by name."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from itl.streams.base import Progress, Stream
from itl.streams.checked_files import read_error
from itl.streams.registry import find
from itl.streams.split import build, check_split, class_order, task_sizes


def check(
    name: str,
    *,
    tasks: int | None = None,
    order: Sequence[int] | None = None,
    order_seed: int | None = None,
    split: str = "test",
) -> None:
    """Check the options of `load` before any file is read.

    Args:
        name: Name of the stream.
        tasks: As in `load`.
        order: As in `load`.
        order_seed: As in `load`.
        split: As in `load`.

    Raises:
        UserError: An option is invalid.
    """
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
    """Load a stream.

    Args:
        name: Name of the stream, one of `itl.streams.names()`.
        root: The data folder. A dataset's own folder or archive works too.
        tasks: Number of tasks. Default: the dataset's usual number. Classes are spread evenly over the tasks; the first
            tasks get one more if the number does not divide.
        order: Class numbers of the dataset in the order in which they are learned. Default: the dataset's order.
        order_seed: Draw the class order from this seed. A seed always draws the same order.
        split: "test", or "validation" to evaluate on a fixed tenth of the training set, which is removed from it.
        download: Download the official files if they are missing.
        progress: Called with (done, total) during a download and while images are decoded for the first time.

    Returns:
        The stream; iterate over it to get its tasks.

    Raises:
        UserError: An option is invalid, or the files are missing, unreadable or not the official ones.
    """
    check(name, tasks=tasks, order=order, order_seed=order_seed, split=split)
    source = find(name)
    with suppress(RuntimeError):  # there is no such user, so `~name` is an ordinary name
        root = Path(root).expanduser()
    root = Path(root)
    try:
        data = source.read(root, download, progress)
    except OSError as error:
        raise read_error(Path(error.filename or root), error) from error
    return build(name, data, tasks=tasks, order=order, order_seed=order_seed, split=split)
