"""Features on the device, which a training step finds by reference without waiting for the host."""

from __future__ import annotations

import torch
from torch import Tensor

from itl.engine.device import Engine
from itl.features.feature_references import split_references


class ResidentFeatures:
    """Features of some images on the device.

    Args:
        numbers: The numbers in the references to these images: int64 `[k]`, ascending, without duplicates.
        features: Their features `[k, views, ...]`.
        engine: The device.
    """

    def __init__(self, numbers: Tensor, features: Tensor, engine: Engine) -> None:
        self.numbers, self.views = engine.send(numbers), features.shape[1]
        self.features = engine.send(features.flatten(0, 1))

    def gather(self, references: Tensor) -> Tensor:
        """Features `[n, ...]` of references `[n, 9, 1, 1]` on the device, all of which must be to these images."""
        numbers, views = split_references(references)
        return self.features.index_select(0, torch.searchsorted(self.numbers, numbers) * self.views + views)
