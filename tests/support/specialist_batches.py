"""Specialists with a stub of their context, batches, and losses over plain numbers, for tests of equations."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from itl.settings import SpecialistSettings
from itl.specialists import Batch, Specialist, build

C = 6  # outputs: classes 0 and 1 are past, 2 and 3 current, 4 and 5 future


class StubMemory(SimpleNamespace):
    """Stand-in for a memory with the attributes that the equations need."""

    def __len__(self) -> int:
        return int(self.size)


def specialist(name: str, net: nn.Module, tasks: Any = ((0, 1), (2, 3)), **settings: Any) -> Specialist:
    result = build(SpecialistSettings(name=name, **settings))
    seen = [c for task in tasks for c in task]
    result.context = SimpleNamespace(  # type: ignore[assignment]
        net=net,
        tasks=tasks,
        past_classes=tuple(c for task in tasks[:-1] for c in task),
        classes=tasks[-1],
        seen_mask=torch.tensor([c in seen for c in range(C)]),
        task_mask=torch.tensor([c in tasks[-1] for c in range(C)]),
        past_columns=torch.tensor([c for task in tasks[:-1] for c in task]),
        key=(0, len(tasks)),
        memory=StubMemory(size=8, pixels=torch.zeros(9, 1, 8, 8)),
        engine=SimpleNamespace(send=lambda t: t, device=torch.device("cpu")),
    )
    return result


def make_batch(n: int, classes: tuple[int, ...], seed: int, logits: bool = False, views: int = 1) -> Batch:
    rng = torch.Generator().manual_seed(seed)
    x = [torch.randn(n, 1, 8, 8, generator=rng, dtype=torch.float64) for _ in range(views)]
    y = torch.tensor(classes)[torch.arange(n) % len(classes)]
    stored = torch.randn(n, C, generator=rng, dtype=torch.float64) if logits else None
    return Batch(x[0], y, stored, extra_views=tuple(x[1:]), slots=torch.arange(n))


def log_softmax(row: list[float]) -> list[float]:
    top = max(row)
    total = top + math.log(sum(math.exp(v - top) for v in row))
    return [v - total for v in row]


def mean(values: Any) -> float:
    values = list(values)
    return sum(values) / len(values)


def sample_ce(logits: Tensor, y: Tensor, columns: list[int] | None = None) -> list[float]:
    """Cross-entropy of each sample, over all or some columns."""
    if columns is None:
        columns = list(range(logits.shape[1]))
    rows = zip(logits.tolist(), y.tolist(), strict=True)
    return [-log_softmax([row[c] for c in columns])[columns.index(label)] for row, label in rows]


def ce(logits: Tensor, y: Tensor, columns: list[int]) -> float:
    """Mean cross-entropy over some columns."""
    return mean(sample_ce(logits, y, columns))
