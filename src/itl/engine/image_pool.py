"""Images for the training steps: on the device if they fit, otherwise on the host and copied ahead of use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from itl.engine.device import Engine

UNLIMITED = 1 << 62  # bytes


class ImageSource(Protocol):
    """Provides uint8 images by row."""

    def gather(self, index: Tensor) -> Tensor:
        """Images `[k, channels, height, width]` for rows `[k]`."""
        ...


def available(engine: Engine) -> int:
    """Bytes of images that may stay on the device: a quarter of its free memory, or the engine's own limit."""
    if engine.resident_bytes is not None:
        return engine.resident_bytes
    if engine.device.type == "cuda":
        return torch.cuda.mem_get_info(engine.device)[0] // 4
    return UNLIMITED  # the images are in host memory anyway


class ImagePool:
    """The first `count` images of a source, readable from the device."""

    def __init__(self, source: ImageSource, count: int, engine: Engine) -> None:
        self.engine = engine
        self.source: ImageSource | None = source
        self.pixels: Tensor | None = None
        size = source.gather(torch.zeros(1, dtype=torch.int64)).numel() * count
        if engine.device.type == "cpu" and engine.resident_bytes is None:
            return  # gathering from the source is already the cheapest way
        if size <= available(engine):
            self.pixels = engine.send(source.gather(torch.arange(count)))
            self.source = None

    def gather(self, index: Tensor) -> Tensor:
        """uint8 images `[k, channels, height, width]` on the device for CPU rows `[k]`."""
        if self.pixels is not None:
            return self.pixels.index_select(0, self.engine.send(index))
        assert self.source is not None
        return self.engine.send(self.source.gather(index))


class ConcatImageSource:
    """Several sources concatenated into one. Each part is (source, number of rows)."""

    def __init__(self, parts: Sequence[tuple[ImageSource, int]]) -> None:
        self.parts = list(parts)

    def gather(self, index: Tensor) -> Tensor:
        """Images `[k, channels, height, width]` for CPU rows `[k]`."""
        found, positions, first = [], [], 0
        for source, count in self.parts:
            position = torch.nonzero((index >= first) & (index < first + count)).flatten()
            if len(position):
                found.append(source.gather(index[position] - first))
                positions.append(position)
            first += count
        order = torch.cat(positions).argsort() if positions else index
        images = torch.cat(found) if found else self.parts[0][0].gather(index)
        return images.index_select(0, order.to(images.device))
