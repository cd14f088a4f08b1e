"""Convert uint8 images to network inputs: normalized, and resized if the network expects another size."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from itl.engine.device import Engine


class Normalize:
    """Maps uint8 images `[n, c, h, w]` to float32 with the data's mean and standard deviation removed.

    The output has the network's memory layout.

    Args:
        mean: Mean of each channel, for pixel values from 0 to 1.
        std: Standard deviation of each channel.
        engine: Device and layout.
        size: Height and width of the output in pixels; None for those of the images.
        interpolation: "bilinear" or "bicubic", if images are resized.
    """

    def __init__(
        self,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        engine: Engine,
        size: int | None = None,
        interpolation: str = "bilinear",
    ) -> None:
        means, deviations = torch.tensor(mean, dtype=torch.float64), torch.tensor(std, dtype=torch.float64)
        self.scale = (1 / (255 * deviations)).float().view(-1, 1, 1).to(engine.device)
        self.shift = (-means / deviations).float().view(-1, 1, 1).to(engine.device)
        self.layout = engine.layout
        self.size, self.interpolation = size, interpolation

    def __call__(self, images: Tensor) -> Tensor:
        """Float32 `[n, c, h, w]`."""
        images = images.contiguous(memory_format=self.layout)  # permuting uint8 is cheaper than permuting float32
        x = torch.addcmul(self.shift, images.float(), self.scale)
        return x if self.size is None else resize(x, self.size, self.interpolation)

    def as_module(self) -> nn.Module:
        """The same function as a module on the CPU, for export."""
        return _NormalizeModule(self)


class _NormalizeModule(nn.Module):
    """Maps uint8 images `[n, c, h, w]` to float32, as a `Normalize` does."""

    def __init__(self, normalize: Normalize) -> None:
        super().__init__()
        self.scale = nn.Buffer(normalize.scale.cpu().clone())
        self.shift = nn.Buffer(normalize.shift.cpu().clone())
        self.size, self.interpolation = normalize.size, normalize.interpolation

    def forward(self, pixels: Tensor) -> Tensor:
        """Normalized, resized images."""
        x = pixels.float() * self.scale + self.shift
        return x if self.size is None else resize(x, self.size, self.interpolation)


def resize(x: Tensor, size: int, interpolation: str) -> Tensor:
    """Resize images `[n, c, h, w]` to `size` x `size`; smoothed before they are made smaller."""
    height, width = x.shape[-2:]
    if (height, width) == (size, size):
        return x
    shrinks = max(height, width) > size
    return F.interpolate(x, (size, size), mode=interpolation, align_corners=False, antialias=shrinks)
