"""The network that golden values of specialists were computed with, and a trained learner."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from itl import Learner
from support.tiny import tiny_learner, tiny_stream


def wave(*shape: int, k: float) -> Tensor:
    """Reproducible numbers: sin(k i + k)."""
    return torch.sin(torch.arange(math.prod(shape), dtype=torch.float64) * k + k).reshape(shape)


class GoldenNet(nn.Module):
    """The network that the golden values were computed with."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 5, dtype=torch.float64), nn.Linear(5, 3, dtype=torch.float64)
        with torch.no_grad():
            for p, k in zip(self.parameters(), (1.3, 0.7, 2.1, 0.4), strict=True):
                p.copy_(wave(*p.shape, k=k))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.b(torch.tanh(self.a(x)))
        return out


def trained_learner(method: str, tasks: int = 2, **settings: Any) -> Learner:
    stream = tiny_stream(classes=6, tasks=3, each=9)
    learner = tiny_learner(method, buffer=7, classes=6, **{"specialist__epochs": 3, **settings})
    for task in stream.tasks[:tasks]:
        learner.learn(task)
    return learner
