"""Convert uint8 images to normalized network inputs."""

from __future__ import annotations

import torch
from torch import Tensor

from itl.engine.device import Engine


class Normalize:
    """Maps uint8 images `[n, c, h, w]` to float32 with the data's mean and standard deviation removed.

    The output has the network's memory layout.
    """

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...], engine: Engine) -> None:
        means, deviations = torch.tensor(mean, dtype=torch.float64), torch.tensor(std, dtype=torch.float64)
        self.scale = (1 / (255 * deviations)).float().view(-1, 1, 1).to(engine.device)
        self.shift = (-means / deviations).float().view(-1, 1, 1).to(engine.device)
        self.layout = engine.layout

    def __call__(self, images: Tensor) -> Tensor:
        """Float32 `[n, c, h, w]`."""
        images = images.contiguous(memory_format=self.layout)  # permuting uint8 is cheaper than permuting float32
        return torch.addcmul(self.shift, images.float(), self.scale)
