"""Converts images and labels from arrays, Pillow images, datasets or data loaders into a task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from itl.errors import UserError, unknown
from itl.streams import Images, Task, Traits
from itl.streams.arrays import as_images, as_pixels, collect, collect_batches, statistics

if TYPE_CHECKING:
    from itl.learner.learner import Learner

ArrayData: TypeAlias = np.ndarray | Tensor | Sequence[Image.Image]
ImageData: TypeAlias = ArrayData | Dataset[Any] | DataLoader[Any]
LabelData: TypeAlias = np.ndarray | Tensor | Sequence[int] | Sequence[str]

MAX_OUTPUTS = 1 << 17  # larger labels are not class numbers; so wide a classifier would not fit into memory


def read_data(images: ImageData, labels: LabelData | None, verb: str = "learn") -> tuple[Any, Any]:
    """Images and labels of a `Dataset` or a `DataLoader`; other data are returned as they are.

    Args:
        images: Images, a `Dataset` of images and labels, or a `DataLoader` of batches of both.
        labels: Labels `[n]`; None for a `Dataset` or a `DataLoader`.
        verb: Name of the caller's method, for error messages.

    Raises:
        UserError: Labels are missing, or a sample is not a pair of image and label.
    """
    if labels is not None:
        return images, labels
    if isinstance(images, DataLoader):
        return collect_batches(images)
    if isinstance(images, np.ndarray | Tensor | list | tuple):
        raise UserError(
            f"there are images but no labels; call {verb}(images, labels), or pass a Dataset or DataLoader of both"
        )
    return collect(images)


def images_to_predict(images: Images | ImageData) -> Images:
    """Images with label 0. The labels of a `Dataset` or `DataLoader` are ignored; a loader need not have any."""
    if isinstance(images, Images):
        return images
    if isinstance(images, DataLoader):
        pixels = collect_batches(images, labeled=False)[0]
    elif is_array_like(images):
        pixels = as_pixels(images)
    else:
        pixels = collect(images)[0]
    return Images(pixels, torch.zeros(len(pixels), dtype=torch.int64))


def is_array_like(images: object) -> bool:
    """Whether `as_pixels` converts these images, rather than `collect` or `collect_batches`."""
    return hasattr(images, "__array__") or isinstance(images, list | tuple | str) or not hasattr(images, "__getitem__")


def encode_labels(labels: Any, names: Sequence[str] | None, first: bool, grow: bool) -> tuple[Any, list[str] | None]:
    """Replace labels that are strings by the outputs of the classifier.

    Args:
        labels: Integers or strings `[n]`.
        names: Class name of each output; None if labels have been integers.
        first: Whether no task was learned yet.
        grow: Whether a new name is a new class; otherwise it is refused.

    Returns:
        Integer labels, and the names including new ones; None if labels are integers.

    Raises:
        UserError: If strings are mixed with integers, or a name is unknown and `grow` is False.
    """
    array = labels if isinstance(labels, Tensor) else np.asarray(labels)
    if not _is_text(labels):
        if names is not None and len(array):
            raise UserError(f"labels were names so far, such as '{names[0]}'; give names again")
        return labels, None
    if names is None and not first:
        raise UserError("labels were integers so far; give integers again")
    given, known = [str(name) for name in array.tolist()], list(names or [])
    new = sorted(set(given) - set(known))
    if new and not grow:
        raise unknown("class", new[0], known)
    outputs = {name: output for output, name in enumerate([*known, *new])}
    return np.array([outputs[name] for name in given], np.int64), list(outputs)


def task_for(
    learner: Learner, data: Task | ImageData, labels: LabelData | None, verb: str = "learn"
) -> tuple[Task, list[str] | None]:
    """A learner's next task, or one to evaluate: a task as it is, or one built from what the method `verb` takes.

    Returns:
        The task, and the class names including those of the task; None if labels are integers.

    Raises:
        UserError: The data cannot be read, or their labels do not fit the learner's.
    """
    if isinstance(data, Task):
        return data, learner.class_names
    learns = verb == "learn"
    images, labels = read_data(data, labels, verb)
    labels, names = encode_labels(labels, learner.class_names, first=not learner.tasks, grow=learns)
    traits = learner.traits if learner.is_built else None
    return task_from_arrays(images, labels, len(learner.tasks) if learns else 0, traits, verb), names


def _is_text(labels: Any) -> bool:
    if isinstance(labels, np.ndarray) and labels.dtype.kind != "O":
        return labels.dtype.kind == "U" and labels.ndim == 1
    return not isinstance(labels, Tensor) and len(labels) > 0 and all(isinstance(name, str) for name in labels)


def task_from_arrays(
    images: ArrayData, labels: LabelData, number: int, traits: Traits | None, verb: str = "learn"
) -> Task:
    """Build a task from images and labels.

    Args:
        images: uint8 images `[n, h, w]`, `[n, h, w, c]` or `[n, c, h, w]`, or a list of Pillow images.
        labels: Integer labels `[n]`.
        number: Index of the task.
        traits: Traits of the stream; None measures mean and standard deviation on these images.
        verb: Name of the caller's method, for error messages.

    Returns:
        A task without test images.

    Raises:
        UserError: A label is missing, negative or too large, or there are no images.
    """
    data = as_images(images, labels)
    if not len(data):
        raise UserError(f"there are no images to {verb}{' from' * (verb == 'learn')}")
    if int(data.labels.min()) < 0:
        raise UserError("labels must be 0 or more, because they are the classifier's outputs")
    if int(data.labels.max()) >= MAX_OUTPUTS:
        raise UserError(
            f"labels must be under {MAX_OUTPUTS:,}, not {int(data.labels.max())}: they are the classifier's outputs; "
            "number the classes from 0"
        )
    return _task_from_images(data, number, traits)


def next_task(learner: Learner, images: Images, *, flip: bool, policy: str | None) -> Task:
    """The next task of a learner, without test images.

    Args:
        learner: The learner. Its first task determines the image statistics and the augmentation.
        images: The training images; their labels are outputs of the classifier.
        flip: Whether horizontal flips preserve the class.
        policy: AutoAugment policy that preserves the class, or None.
    """
    return _task_from_images(images, len(learner.tasks), learner.traits if learner.is_built else None, flip, policy)


def _task_from_images(
    images: Images, number: int, traits: Traits | None, flip: bool = False, policy: str | None = None
) -> Task:
    if traits is None:
        mean, std = statistics(images, None, None)
        padding = min(4, images.source.shape[-1] // 8)
        traits = Traits(mean, std, flip=flip, padding=padding, policy=policy, tasks=0)
    classes = tuple(sorted(set(images.labels.tolist())))
    return Task(number, classes, images, images.take(torch.arange(0)), "", traits)
