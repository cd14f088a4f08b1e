"""Images and labels as a task."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from itl.errors import UserError
from itl.streams import Task, Traits
from itl.streams.arrays import as_images, statistics


def lesson(images: Any, labels: Any, number: int, traits: Traits | None) -> Task:
    """Task `number` of what a user hands over. `traits` None: they are measured on these images, the first."""
    if labels is None and isinstance(images, np.ndarray | Tensor | list | tuple):
        raise UserError("there are images but no labels; give learn(images, labels), or a torch Dataset of both")
    data = as_images(images, labels)
    if not len(data):
        raise UserError("there are no images to learn from")
    if int(data.labels.min()) < 0:
        raise UserError("labels must be 0 or more: they are the classifier's outputs")
    if traits is None:
        mean, std = statistics(data, None, None)
        padding = min(4, data.source.shape[-1] // 8)
        traits = Traits(mean, std, flip=False, padding=padding, policy=None, tasks=0)
    classes = tuple(sorted(set(data.labels.tolist())))
    return Task(number, classes, data, data.take(torch.arange(0)), "", traits)
