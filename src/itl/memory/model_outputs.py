"""What the network says of images, for the policies that choose by it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from itl.engine.pool import ImageSource

PART = 512  # images looked at at once


@dataclass(frozen=True)
class Seen:
    """Features `[n, d]` and logits `[n, classes]` of n images, float32 on the device."""

    features: Tensor
    logits: Tensor

    def errors(self, labels: Tensor) -> Tensor:
        """The gradient of cross-entropy by the logits, softmax - one-hot: `[n, classes]` (labels `[n]`)."""
        return self.logits.softmax(1) - torch.nn.functional.one_hot(labels, self.logits.shape[1])


@dataclass
class ModelOutputs:
    """The task's images and those held, seen by the present network in evaluation mode, raw; looked at when asked.

    `look` takes uint8 images `[k, c, h, w]` on the device to their features and logits.
    """

    look: Callable[[Tensor], tuple[Tensor, Tensor]]
    pool: ImageSource
    count: int
    memory: ImageSource
    held_count: int

    @cached_property
    def task(self) -> Seen:
        """All of the task's samples."""
        return self._see(self.pool, torch.arange(self.count))

    @cached_property
    def held(self) -> Seen:
        """The images in memory."""
        return self._see(self.memory, torch.arange(self.held_count))

    def of(self, rows: np.ndarray) -> Seen:
        """Some of the task's samples."""
        return self._see(self.pool, torch.from_numpy(rows))

    def _see(self, source: ImageSource, rows: Tensor) -> Seen:
        parts = [self.look(source.gather(part)) for part in rows.split(PART)]
        features, logits = (torch.cat(column).float() for column in zip(*parts, strict=True))
        # A network that diverged is reported at the end of the round; until then a choice must not fail on it.
        return Seen(features.nan_to_num(), logits.nan_to_num())
