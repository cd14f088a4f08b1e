"""Converts images and labels from arrays, Pillow images or datasets into a task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from itl.errors import UserError
from itl.streams import Task, Traits
from itl.streams.arrays import as_images, statistics

ImageData: TypeAlias = np.ndarray | Tensor | Sequence[Image.Image] | Dataset[Any]
LabelData: TypeAlias = np.ndarray | Tensor | Sequence[int]

MAX_OUTPUTS = 1 << 17  # larger labels are not class numbers; so wide a classifier would not fit into memory


def task_from_arrays(
    images: ImageData, labels: LabelData | None, number: int, traits: Traits | None, verb: str = "learn"
) -> Task:
    """Build a task from images and labels.

    Args:
        images: uint8 images `[n, h, w]`, `[n, h, w, c]` or `[n, c, h, w]`, a list of Pillow images, or a `Dataset`.
        labels: Integer labels `[n]`; None for a `Dataset` that has them.
        number: Index of the task.
        traits: Traits of the stream; None measures mean and standard deviation on these images.
        verb: Name of the caller's method, for error messages.

    Returns:
        A task without test images.

    Raises:
        UserError: Labels are missing, negative or too large, or there are no images.
    """
    if labels is None and isinstance(images, np.ndarray | Tensor | list | tuple):
        raise UserError(f"there are images but no labels; call {verb}(images, labels), or pass a torch Dataset of both")
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
    if traits is None:
        mean, std = statistics(data, None, None)
        padding = min(4, data.source.shape[-1] // 8)
        traits = Traits(mean, std, flip=False, padding=padding, policy=None, tasks=0)
    classes = tuple(sorted(set(data.labels.tolist())))
    return Task(number, classes, data, data.take(torch.arange(0)), "", traits)
