"""Epochs over the memory (or the task) alone, several of them planned and prepared at once.

A memory of 200 is seven steps an epoch: planned one by one they would cost more than they train. What is frozen during
a stage (a trunk's features, a teacher's logits) is computed here in large batches for a whole round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from itl.augment import Augment, Draws
from itl.engine.batches import sizes_of, steps_of, taken
from itl.engine.device import AT_ONCE, Engine
from itl.engine.pool import Source
from itl.engine.random import Key, generator
from itl.engine.stage import Batch, Span

STEPS_A_ROUND = 200  # enough to hide what a round costs beside its steps
POINTS = 8  # rounds a stage has at least: the points of its curve


@dataclass(frozen=True)
class Round:
    """Some epochs: the rows of all their steps in order `[n]`, each with its view's augmentation."""

    epochs: int
    rows: np.ndarray
    views: Draws


@dataclass
class SampleRounds:
    """Rounds over the first `size` rows of `source`, in batches of `batch`, a partial last one included.

    `prepare(views, rows)` turns uint8 views `[n, c, h, w]` of rows `[n]` into a step's inputs, each `[n, ...]`;
    `weight` is about how many bytes they take a sample. `key` ends in the stage's name.
    """

    source: Source
    size: int
    epochs: int
    steps: int | None
    batch: int
    key: Key
    augment: Augment
    prepare: Callable[[Tensor, Tensor], Batch]
    weight: int
    engine: Engine
    apart: bool = True  # neither the source nor what prepares its views changes meanwhile

    def __post_init__(self) -> None:
        """Count steps and rounds."""
        self.per_epoch = steps_of(self.size, self.batch)
        self.total = self.per_epoch * self.epochs if self.steps is None else self.steps
        self.epochs = -(-self.total // self.per_epoch)
        self.each = max(1, min(STEPS_A_ROUND // self.per_epoch, self.epochs // POINTS))
        self.count = -(-self.epochs // self.each)

    def epoch(self, index: int) -> int:
        """Epochs done when round `index` is."""
        return min(self.epochs, (index + 1) * self.each)

    def first(self, index: int) -> int:
        """Steps done before round `index`."""
        return index * self.each * self.per_epoch

    def plan(self, index: int) -> Round:
        """Draw the round's epochs; each has its own key, so that rounds of any length give the same views."""
        rows, views = [], []
        for epoch in range(index * self.each, self.epoch(index)):
            left = self.total - epoch * self.per_epoch
            order = generator(*self.key, epoch, "order").permutation(self.size)
            rows.append(order[: taken(self.size, self.batch, left)])
            views.append(self.augment.draw(generator(*self.key, epoch, "views"), len(rows[-1])))
        return Round(len(rows), np.concatenate(rows), Draws.cat(views))

    def load(self, plan: Round) -> Iterator[Span]:
        """The round's inputs, in equal spans of whole epochs (or parts of one) within the engine's budget."""
        most = max(1, self.engine.budget // (self.weight * self.batch))  # steps held at once
        passes = [
            sizes_of(min(self.size, len(plan.rows) - first), self.batch)
            for first in range(0, len(plan.rows), self.size)
        ]
        if most < self.per_epoch:
            parts = [part for sizes in passes for part in np.array_split(sizes, -(-len(sizes) // most))]
        else:
            count = -(-len(passes) // (most // self.per_epoch))
            parts = [np.concatenate([passes[k] for k in some]) for some in np.array_split(range(len(passes)), count)]
        first = 0
        for sizes in parts:
            yield self._span(plan, first, sizes)
            first += int(sizes.sum())

    def commit(self, plan: Round) -> None:
        """Nothing outside the step changes."""

    def _span(self, plan: Round, first: int, sizes: np.ndarray) -> Span:
        """Steps of `sizes` samples, from the round's sample `first` on, grouped by shape."""
        starts = np.concatenate([[0], np.cumsum(sizes)])
        stop = first + int(starts[-1])
        rows = torch.from_numpy(plan.rows[first:stop])
        flat = self.prepare(self.augment(self.source.gather(rows), plan.views[first:stop]), rows)
        shapes: dict[int, list[np.ndarray]] = {}
        order: list[tuple[int, int]] = []
        for run in np.split(np.arange(len(sizes)), np.flatnonzero(np.diff(sizes)) + 1):
            size = int(sizes[run[0]])
            shapes.setdefault(size, []).append(np.arange(starts[run[0]], starts[run[-1] + 1]))
            order.append((list(shapes).index(size), len(run)))
        groups = []
        for size, parts in shapes.items():
            index = self.engine.send(torch.from_numpy(np.concatenate(parts)))
            groups.append({name: t.index_select(0, index).unflatten(0, (-1, size)) for name, t in flat.items()})
        return Span(groups, order)


def in_parts(model: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """A frozen model's output for many images, `AT_ONCE` at a time."""
    return torch.cat([model(part).float() for part in x.split(AT_ONCE)])
