"""The timed workload: network, images and numbers of steps, for a GPU and for a CPU."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from itl.results import environment
from itl.streams import Stream, from_arrays


@dataclass(frozen=True)
class Workload:
    """Size of the timed work: ResNet-18 on 10,000 images per task on CUDA, as in the benchmark; small on a CPU.

    Attributes:
        device: "cpu" or "cuda".
        images: Images per task.
        side: Image height and width in pixels.
        net: Network settings.
        epochs: Timed epochs of a specialist.
        baseline_steps: Timed steps of the baseline loop.
        workers: Workers of the baseline's data loader.
        buffers: Memory sizes for the growth measurement.
        concurrent_runs: Numbers of concurrent runs to time.
        settings: Further settings of the learner.
    """

    device: str
    images: int
    side: int
    net: dict[str, Any]
    epochs: int
    baseline_steps: int
    workers: int
    buffers: tuple[int, ...]
    concurrent_runs: tuple[int, ...]
    settings: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def for_device(cls, device: str, quick: bool = False, side: int | None = None) -> Workload:
        """The workload for a device; smaller if `quick`. Images have 32 pixels on CUDA and 16 on a CPU by default."""
        if device == "cuda":
            sizes: tuple[int, ...] = (200, 1000) if quick else (200, 500, 1000, 2000, 5120)
            return cls(device, 10_000, side or 32, {}, 4, 60, 4, sizes, (1, 4) if quick else (1, 2, 3, 4, 6))
        small = {"net.name": "resnet8", "net.width": 8}
        sizes = (100, 200) if quick else (200, 500, 1000)
        return cls(device, 320 if quick else 1_280, side or 16, small, 3, 10 if quick else 30, 1, sizes, (1,))

    def describe(self) -> dict[str, Any]:
        """Start of a record: format, network, number and size of a task's images, hardware and versions."""
        network = self.net.get("net.name", "resnet18")
        facts = {"format": 1, "network": network, "images": self.images, "side": self.side}
        return facts | environment(torch.device(self.device))

    def stream(self) -> Stream:
        """Two tasks of two classes: noise whose brightness depends on the class, so that training can succeed."""
        rng = np.random.default_rng(0)
        labels = np.repeat(np.arange(4), self.images // 2)
        pixels = rng.integers(0, 64, (2 * self.images, 3, self.side, self.side), dtype=np.uint8)
        pixels += (labels * 45).astype(np.uint8)[:, None, None, None]
        test = slice(None, None, self.images // 50)
        name, policy = ("seq-tinyimagenet", "imagenet") if self.side >= 64 else ("seq-cifar10", "cifar10")
        return from_arrays(pixels, labels, pixels[test], labels[test], tasks=2, policy=policy, name=name, layout="NCHW")
