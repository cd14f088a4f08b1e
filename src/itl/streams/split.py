"""From a dataset to a stream: the class order, the tasks, the validation split. Written once, for every dataset."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index as as_int

import torch
from torch import Tensor

from itl.errors import UserError, unknown
from itl.streams.base import Dataset, Images, Stream, Task
from itl.streams.permutations import CLASS_ORDER, VALIDATION, permutation, seeded

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
    """Cut `data` into a stream of `tasks` tasks, its classes in `order` (see `itl.streams.load` for the options)."""
    count = len(data.class_names)
    classes = class_order(count, order, order_seed)
    sizes = task_sizes(count, data.traits.tasks if tasks is None else tasks)
    train, test = (data.train, data.test) if check_split(split) == "test" else validation(data.train)

    column = torch.empty(count, dtype=torch.int64)
    column[classes] = torch.arange(count)
    train, test = _relabel(train, column), _relabel(test, column)

    parts, first = [], 0
    for index, size in enumerate(sizes):
        columns = range(first, first + size)
        task = Task(index, tuple(columns), _of_columns(train, columns), _of_columns(test, columns), name, data.traits)
        parts.append(_not_empty(task, split))
        first += size
    return Stream(
        name=name,
        class_names=tuple(data.class_names[int(k)] for k in classes),
        tasks=tuple(parts),
        mean=data.traits.mean,
        std=data.traits.std,
        flip=data.traits.flip,
        padding=data.traits.padding,
        policy=data.traits.policy,
        split=split,
    )


def check_split(split: str) -> str:
    """`split`, if there is such a split."""
    if split not in SPLITS:
        raise unknown("split", str(split), SPLITS)
    return split


def class_order(count: int, order: Sequence[int] | None, order_seed: int | None) -> Tensor:
    """Which class each column stands for, int64 [count]: as given, drawn from a seed, or the dataset's own order."""
    if order is not None and order_seed is not None:
        raise UserError("give order or order_seed, not both: a seed draws an order of its own")
    if order_seed is not None:
        return permutation(count, seeded(CLASS_ORDER, order_seed))
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
    """How many classes each task gets: as even as can be, the first tasks one more where it does not divide."""
    if tasks < 1:
        raise UserError(f"tasks must be 1 or more, not {tasks}")
    if tasks > classes:
        raise UserError(f"{classes} classes cannot be shared out among {tasks} tasks; ask for {classes} tasks or fewer")
    return [classes // tasks + (t < classes % tasks) for t in range(tasks)]


def validation(train: Images) -> tuple[Images, Images]:
    """The training set cut into (nine tenths to train on, one tenth to choose settings by), each in its original order.

    Which samples depends on their index in the dataset alone: not on the class order, the tasks, the seed or a version.
    """
    order = permutation(len(train), VALIDATION)
    tenth = len(train) // 10
    return train.take(order[tenth:].sort().values), train.take(order[:tenth].sort().values)


def _relabel(images: Images, column: Tensor) -> Images:
    """The same images, their labels turned from classes into columns."""
    if len(images) and not 0 <= int(images.labels.min()) <= int(images.labels.max()) < len(column):
        low, high = int(images.labels.min()), int(images.labels.max())
        raise UserError(f"labels must lie in 0..{len(column) - 1}, the number of classes; found {low}..{high}")
    return Images(images.source, column[images.labels], images.rows)


def _of_columns(images: Images, columns: range) -> Images:
    """The images of these columns in their original order, which is what makes a class-sorted source's task a view."""
    chosen = (images.labels >= columns.start) & (images.labels < columns.stop)
    return images.take(chosen.nonzero().flatten())


def _not_empty(task: Task, split: str) -> Task:
    for part, images in (("training", task.train), (split, task.test)):
        if not len(images):
            raise UserError(
                f"task {task.index + 1} would have no {part} images; ask for fewer tasks or give more images"
            )
    return task
