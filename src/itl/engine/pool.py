"""Images where the steps can reach them: on the device when they fit, else on the host with copies ahead of use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from itl.engine.device import Engine


class ImageSource(Protocol):
    """Anything that hands out uint8 images by row."""

    def gather(self, index: Tensor) -> Tensor:
        """Images `[k, channels, height, width]` for rows `[k]`."""
        ...


def available(engine: Engine) -> int:
    """Bytes of images that may live on the device: a quarter of what is free, or the engine's own bound."""
    if engine.resident is not None:
        return engine.resident
    if engine.device.type == "cuda":
        return torch.cuda.mem_get_info(engine.device)[0] // 4
    return 1 << 62  # the host's own memory holds them anyway


class ImagePool:
    """The first `count` images of a source, seen from the device."""

    def __init__(self, source: ImageSource, count: int, engine: Engine) -> None:
        self.engine = engine
        self.source: ImageSource | None = source
        self.pixels: Tensor | None = None
        size = source.gather(torch.zeros(1, dtype=torch.int64)).numel() * count
        if engine.device.type == "cpu" and engine.resident is None:
            return  # gathering from the source is already the cheapest way
        if size <= available(engine):
            self.pixels = engine.send(source.gather(torch.arange(count)))
            self.source = None

    def gather(self, index: Tensor) -> Tensor:
        """Images `[k, channels, height, width]` uint8 on the device for CPU rows `[k]`."""
        if self.pixels is not None:
            return self.pixels.index_select(0, self.engine.send(index))
        assert self.source is not None
        return self.engine.send(self.source.gather(index))


class ConcatImageSource:
    """Several sources, each with its number of rows, as one whose rows are numbered through."""

    def __init__(self, parts: Sequence[tuple[ImageSource, int]]) -> None:
        self.parts = list(parts)

    def gather(self, index: Tensor) -> Tensor:
        """Images `[k, channels, height, width]` for CPU rows `[k]`."""
        found, places, first = [], [], 0
        for source, count in self.parts:
            place = torch.nonzero((index >= first) & (index < first + count)).flatten()
            if len(place):
                found.append(source.gather(index[place] - first))
                places.append(place)
            first += count
        back = torch.cat(places).argsort() if places else index
        images = torch.cat(found) if found else self.parts[0][0].gather(index)
        return images.index_select(0, back.to(images.device))
