"""Features and logits of a task's images and of the memory, for policies that choose by them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from itl.engine.image_pool import ImageSource

BATCH_SIZE = 512


@dataclass(frozen=True)
class FeaturesAndLogits:
    """Features `[n, d]` and logits `[n, classes]` of n images, float32 on the device."""

    features: Tensor
    logits: Tensor

    def errors(self, labels: Tensor) -> Tensor:
        """Gradient of the cross-entropy with respect to the logits, softmax - one-hot `[n, classes]`; labels `[n]`."""
        return self.logits.softmax(1) - torch.nn.functional.one_hot(labels, self.logits.shape[1])


@dataclass
class ModelOutputs:
    """Outputs of the current network for unaugmented images in evaluation mode, computed on first use.

    Attributes:
        forward: Maps uint8 images `[k, c, h, w]` on the device to their features and logits.
        pool: The task's training images.
        count: Number of the task's images.
        memory: The images in memory.
        memory_count: Number of images in memory.
    """

    forward: Callable[[Tensor], tuple[Tensor, Tensor]]
    pool: ImageSource
    count: int
    memory: ImageSource
    memory_count: int

    @cached_property
    def task(self) -> FeaturesAndLogits:
        """Outputs for all of the task's images."""
        return self._compute(self.pool, torch.arange(self.count))

    @cached_property
    def stored(self) -> FeaturesAndLogits:
        """Outputs for the images in memory."""
        return self._compute(self.memory, torch.arange(self.memory_count))

    def for_rows(self, rows: np.ndarray) -> FeaturesAndLogits:
        """Outputs for the task's images `rows` `[k]`."""
        return self._compute(self.pool, torch.from_numpy(rows))

    def _compute(self, source: ImageSource, rows: Tensor) -> FeaturesAndLogits:
        batches = [self.forward(source.gather(batch)) for batch in rows.split(BATCH_SIZE)]
        features, logits = (torch.cat(column).float() for column in zip(*batches, strict=True))
        # Training reports a diverged network at the end of the round; until then a selection must not fail on it.
        return FeaturesAndLogits(features.nan_to_num(), logits.nan_to_num())
