"""Images and labels as a task."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from itl.errors import UserError
from itl.streams import Task, Traits
from itl.streams.arrays import as_images, statistics

OUTPUTS = 1 << 17  # a label beyond is a number of another kind, and a classifier that wide would fill the memory


def lesson(images: Any, labels: Any, number: int, traits: Traits | None, verb: str = "learn") -> Task:
    """Task `number` of what a user hands over. `traits` None: they are measured on these images, the first."""
    if labels is None and isinstance(images, np.ndarray | Tensor | list | tuple):
        raise UserError(f"there are images but no labels; give {verb}(images, labels), or a torch Dataset of both")
    data = as_images(images, labels)
    if not len(data):
        raise UserError(f"there are no images to {verb}{' from' * (verb == 'learn')}")
    if int(data.labels.min()) < 0:
        raise UserError("labels must be 0 or more: they are the classifier's outputs")
    if int(data.labels.max()) >= OUTPUTS:
        raise UserError(
            f"labels must be under {OUTPUTS:,}, not {int(data.labels.max())}: they are the classifier's outputs; "
            "number the classes from 0"
        )
    if traits is None:
        mean, std = statistics(data, None, None)
        padding = min(4, data.source.shape[-1] // 8)
        traits = Traits(mean, std, flip=False, padding=padding, policy=None, tasks=0)
    classes = tuple(sorted(set(data.labels.tolist())))
    return Task(number, classes, data, data.take(torch.arange(0)), "", traits)
