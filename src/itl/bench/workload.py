"""The work that is timed: which network, images and numbers of steps, for a GPU and for a CPU."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from itl.streams import Stream, from_arrays


@dataclass(frozen=True)
class Scale:
    """A benchmark's size. On CUDA it is the benchmark's own: ResNet-18 on 10,000 images a task; small on a CPU."""

    device: str
    images: int  # a task's
    side: int
    net: dict[str, Any]
    epochs: int  # timed epochs of a specialist
    usual_steps: int  # timed steps of the usual loop
    workers: int  # of its loader
    buffers: tuple[int, ...]
    lanes: tuple[int, ...]
    settings: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, device: str, quick: bool = False) -> Scale:
        """The size for a device."""
        if device == "cuda":
            sizes: tuple[int, ...] = (200, 1000) if quick else (200, 500, 1000, 2000, 5120)
            return cls(device, 10_000, 32, {}, 4, 60, 4, sizes, (1, 4) if quick else (1, 2, 3, 4, 6))
        small = {"net.name": "resnet8", "net.width": 8}
        sizes = (100, 200) if quick else (200, 500, 1000)
        return cls(device, 320 if quick else 1_280, 16, small, 3, 10 if quick else 30, 1, sizes, (1,))

    def stream(self) -> Stream:
        """Two tasks of two classes of noise, each class with a brightness of its own: there is something to learn."""
        rng = np.random.default_rng(0)
        labels = np.repeat(np.arange(4), self.images // 2)
        pixels = rng.integers(0, 64, (2 * self.images, 3, self.side, self.side), dtype=np.uint8)
        pixels += (labels * 45).astype(np.uint8)[:, None, None, None]
        test = slice(None, None, self.images // 50)
        return from_arrays(
            pixels, labels, pixels[test], labels[test], tasks=2, policy="cifar10", name="seq-cifar10", layout="NCHW"
        )
