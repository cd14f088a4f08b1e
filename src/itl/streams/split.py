"""From a dataset to a stream: class order, tasks and validation split."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index as as_int

import torch
from torch import Tensor

from itl.errors import UserError, unknown
from itl.streams.base import Dataset, Images, Stream, Task
from itl.streams.stable_permutation import CLASS_ORDER_KEY, VALIDATION_KEY, derive_key, hash_permutation

SPLITS = ("test", "validation")


def build(
    name: str,
    data: Dataset,
    *,
    tasks: int | None = None,
    order: Sequence[int] | None = None,
    order_seed: int | None = None,
    split: str = "test",
) -> Stream:
    """Split a dataset into a stream of tasks.

    Args:
        name: Name of the stream.
        data: The dataset.
        tasks: Number of tasks. Default: the dataset's usual number.
        order: Class numbers in the order in which they are learned. Default: the dataset's order.
        order_seed: Seed of a drawn class order.
        split: "test" or "validation".

    Returns:
        The stream. Its labels are output columns, in class order.

    Raises:
        UserError: An option is invalid, or a task would have no images.
    """
    count = len(data.class_names)
    classes = class_order(count, order, order_seed)
    sizes = task_sizes(count, data.traits.tasks if tasks is None else tasks)
    train, test = (data.train, data.test) if check_split(split) == "test" else validation_split(data.train)

    column = torch.empty(count, dtype=torch.int64)
    column[classes] = torch.arange(count)
    train, test = _relabel(train, column), _relabel(test, column)

    all_tasks, first = [], 0
    for index, size in enumerate(sizes):
        columns = range(first, first + size)
        task = Task(index, tuple(columns), _of_columns(train, columns), _of_columns(test, columns), name, data.traits)
        _check_not_empty(task, split)
        all_tasks.append(task)
        first += size
    return Stream(
        name=name,
        class_names=tuple(data.class_names[int(k)] for k in classes),
        tasks=tuple(all_tasks),
        mean=data.traits.mean,
        std=data.traits.std,
        flip=data.traits.flip,
        padding=data.traits.padding,
        policy=data.traits.policy,
        split=split,
    )


def check_split(split: str) -> str:
    """Return `split`, or raise a `UserError` if there is no such split."""
    if split not in SPLITS:
        raise unknown("split", str(split), SPLITS)
    return split


def class_order(count: int, order: Sequence[int] | None, order_seed: int | None) -> Tensor:
    """Class of each output column, int64 `[count]`: as given, drawn from a seed, or in the dataset's order."""
    if order is not None and order_seed is not None:
        raise UserError("give order or order_seed, not both")
    if order_seed is not None:
        return hash_permutation(count, derive_key(CLASS_ORDER_KEY, order_seed))
    if order is None:
        return torch.arange(count)
    try:
        given = [as_int(k) for k in order]
    except TypeError:
        raise UserError(f"order must hold class numbers 0..{count - 1}; found {list(order)!r:.60}") from None
    if sorted(given) != list(range(count)):
        raise UserError(
            f"order must hold every class number 0..{count - 1} exactly once; it holds {len(given)} numbers"
        )
    return torch.tensor(given, dtype=torch.int64)


def task_sizes(classes: int, tasks: int) -> list[int]:
    """Number of classes of each task: equal, or one more for the first tasks."""
    if tasks < 1:
        raise UserError(f"tasks must be 1 or more, not {tasks}")
    if tasks > classes:
        raise UserError(f"{classes} classes cannot be split into {tasks} tasks; use {classes} tasks or fewer")
    return [classes // tasks + (t < classes % tasks) for t in range(tasks)]


def validation_split(train: Images) -> tuple[Images, Images]:
    """Split a training set into nine tenths for training and one tenth for validation, each in its original order.

    The split depends only on the samples' indices in the dataset: not on the class order, the tasks, a seed or a
    version.
    """
    order = hash_permutation(len(train), VALIDATION_KEY)
    tenth = len(train) // 10
    return train.take(order[tenth:].sort().values), train.take(order[:tenth].sort().values)


def _relabel(images: Images, column: Tensor) -> Images:
    """The same images, with output columns in place of class numbers as labels."""
    if len(images) and not 0 <= int(images.labels.min()) <= int(images.labels.max()) < len(column):
        low, high = int(images.labels.min()), int(images.labels.max())
        raise UserError(f"labels must be in 0..{len(column) - 1}, one for each class; found {low}..{high}")
    return Images(images.source, column[images.labels], images.rows)


def _of_columns(images: Images, columns: range) -> Images:
    """Images of these columns in their original order, so that a task of a class-sorted source is a view of it."""
    chosen = (images.labels >= columns.start) & (images.labels < columns.stop)
    return images.take(chosen.nonzero().flatten())


def _check_not_empty(task: Task, split: str) -> None:
    for part, images in (("training", task.train), (split, task.test)):
        if not len(images):
            raise UserError(f"task {task.index + 1} would have no {part} images; use fewer tasks or give more images")
