"""From uint8 views to what a network sees."""

from __future__ import annotations

import torch
from torch import Tensor

from itl.engine.device import Engine


class Normalize:
    """uint8 `[n, c, h, w]` to float32 with the data's mean and deviation taken out, in the network's memory layout."""

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...], engine: Engine) -> None:
        centre, spread = torch.tensor(mean, dtype=torch.float64), torch.tensor(std, dtype=torch.float64)
        self.scale = (1 / (255 * spread)).float().view(-1, 1, 1).to(engine.device)
        self.shift = (-centre / spread).float().view(-1, 1, 1).to(engine.device)
        self.layout = engine.layout

    def __call__(self, views: Tensor) -> Tensor:
        """Float32 `[n, c, h, w]`."""
        views = views.contiguous(memory_format=self.layout)  # bytes are turned round sooner than what they become
        return torch.addcmul(self.shift, views.float(), self.scale)
