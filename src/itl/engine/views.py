"""From uint8 views to what a network sees."""

from __future__ import annotations

import torch
from torch import Tensor

from itl.engine.device import Engine


class Normalise:
    """uint8 `[n, c, h, w]` to float32 with the data's mean and deviation taken out, in the network's memory layout."""

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...], engine: Engine) -> None:
        centre, spread = torch.tensor(mean, dtype=torch.float64), torch.tensor(std, dtype=torch.float64)
        self.scale = (1 / (255 * spread)).float().view(-1, 1, 1).to(engine.device)
        self.shift = (-centre / spread).float().view(-1, 1, 1).to(engine.device)
        self.layout = torch.channels_last if engine.device.type == "cuda" else torch.contiguous_format

    def __call__(self, views: Tensor) -> Tensor:
        """Float32 `[n, c, h, w]`."""
        return torch.addcmul(self.shift, views.float(), self.scale).contiguous(memory_format=self.layout)

    def stored(self, x: Tensor) -> Tensor:
        """Normalised images `[n, c, h, w]` as rows to take batches from, in their own memory layout."""
        return x.permute(0, 2, 3, 1).contiguous() if self.layout is torch.channels_last else x

    def taken(self, rows: Tensor) -> Tensor:
        """A batch of what `stored` gave: `[n, c, h, w]` again."""
        return rows.permute(0, 3, 1, 2) if self.layout is torch.channels_last else rows
