"""Epochs over the memory (or the task) alone, several of them drawn and prepared at once.

A memory of 200 is seven steps an epoch: made one by one they would cost more than they train. What is frozen during
a stage (a trunk's features, a teacher's logits) is computed here in large batches for a whole round.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from itl.augment import Augment, Draws
from itl.engine.batches import batch_sizes, num_batches, num_samples
from itl.engine.device import INFERENCE_BATCH, Engine
from itl.engine.keyed_random import Key, generator
from itl.engine.pool import ImageSource
from itl.engine.stage import StepChunk, StepInputs

SOON = (2, 5)  # epochs of a stage's first spans, where its steps wait for them: the next is made while they train
STEPS_A_ROUND = 200  # enough to hide what a round costs beside its steps
POINTS = 8  # rounds a stage has at least: the points of its curve


@dataclass
class SampleRoundPlanner:
    """Rounds over the first `size` rows of `source`, in batches of `batch`, a partial last one included.

    `prepare(views, rows)` turns uint8 views `[n, c, h, w]` of rows `[n]` into a step's inputs, each `[n, ...]`;
    `weight` is about how many bytes they take a sample. `key` ends in the stage's name.
    """

    source: ImageSource
    size: int
    epochs: int
    steps: int | None
    batch: int
    key: Key
    augment: Augment
    prepare: Callable[[Tensor, Tensor], StepInputs]
    weight: int
    engine: Engine
    independent: bool = True  # neither the source nor what prepares its views changes meanwhile

    def __post_init__(self) -> None:
        """Count steps and rounds."""
        self.per_epoch = num_batches(self.size, self.batch)
        self.total_steps = self.per_epoch * self.epochs if self.steps is None else self.steps
        self.epochs = -(-self.total_steps // self.per_epoch)
        self.each = max(1, min(STEPS_A_ROUND // self.per_epoch, self.epochs // POINTS))
        self.num_rounds = -(-self.epochs // self.each)
        most = max(1, self.engine.input_bytes // (self.weight * self.batch))  # steps held at once
        self.cuts = -(-self.per_epoch // most)  # parts of an epoch
        self.longest = -(-self.each // -(-self.each // max(1, most // self.per_epoch)))  # epochs of a span

    def epochs_done(self, index: int) -> int:
        """Epochs done when round `index` is."""
        return min(self.epochs, (index + 1) * self.each)

    def first_step(self, index: int) -> int:
        """Steps done before round `index`."""
        return index * self.each * self.per_epoch

    def plan(self, index: int) -> range:
        """The round's epochs. Each has keys of its own: it is drawn when its span is made, and always the same."""
        return range(index * self.each, self.epochs_done(index))

    def load(self, plan: range) -> Iterator[StepChunk]:
        """The round's inputs, in equal spans of whole epochs (or parts of one) within the engine's budget."""
        for epochs in self._spans(plan):
            drawn = [self._drawn(epoch) for epoch in epochs]
            rows, views = np.concatenate([rows for rows, _ in drawn]), Draws.cat([views for _, views in drawn])
            sizes = np.concatenate([batch_sizes(len(rows), self.batch) for rows, _ in drawn])
            first = 0
            for part in np.array_split(sizes, min(self.cuts, len(sizes))):
                stop = first + int(part.sum())
                yield self._span(rows[first:stop], views[first:stop], part)
                first = stop

    def commit(self, plan: range) -> None:
        """Nothing outside the step changes."""

    def _drawn(self, epoch: int) -> tuple[np.ndarray, Draws]:
        """The rows that an epoch takes, in order `[n]`, and their views; a stage's last one may be cut short."""
        some = num_samples(self.size, self.batch, self.total_steps - epoch * self.per_epoch)
        rows = generator(*self.key, epoch, "order").permutation(self.size)[:some]
        return rows, self.augment.draw(generator(*self.key, epoch, "views"), len(rows))

    def _spans(self, plan: range) -> list[range]:
        """A round's epochs as equal spans; the first round's begin with few, which are soon there."""
        few = [min(k, self.longest) for k in SOON] if plan.start == 0 and self.engine.capture else []
        soon = [k for k in itertools.accumulate(few) if k < len(plan)]
        first = soon[-1] if soon else 0
        count = -(-(len(plan) - first) // self.longest)
        edges = [0, *soon[:-1], *np.linspace(first, len(plan), count + 1).round().astype(int).tolist()]
        return [plan[a:b] for a, b in itertools.pairwise(edges) if b > a]

    def _room(self, size: int) -> int:
        """How many steps of so many samples the longest span has; 0 where epochs are cut."""
        return 0 if self.cuts > 1 else self.longest * (self.size // self.batch if size == self.batch else 1)

    def _span(self, taken: np.ndarray, views: Draws, sizes: np.ndarray) -> StepChunk:
        """Steps of `sizes` samples, the rows `taken` one after another, grouped by shape."""
        starts = np.concatenate([[0], np.cumsum(sizes)])
        shapes: dict[int, list[np.ndarray]] = {}
        order: list[tuple[int, int]] = []
        for run in np.split(np.arange(len(sizes)), np.flatnonzero(np.diff(sizes)) + 1):
            size = int(sizes[run[0]])
            shapes.setdefault(size, []).append(np.arange(starts[run[0]], starts[run[-1] + 1]))
            order.append((list(shapes).index(size), len(run)))
        # Rows in the groups' order from the beginning: what is prepared need not be moved then.
        index = np.concatenate([part for parts in shapes.values() for part in parts])
        rows = torch.from_numpy(taken[index])
        flat = self.prepare(self.augment(self.source.gather(rows), views[torch.from_numpy(index)]), rows)
        groups, first = [], 0
        for size, parts in shapes.items():
            stop = first + sum(map(len, parts))
            groups.append({name: t[first:stop].unflatten(0, (-1, size)) for name, t in flat.items()})
            first = stop
        return StepChunk(groups, order, capacity=tuple(map(self._room, shapes)))


def joined(parts: list[Tensor]) -> Tensor:
    """Parts behind one another; one alone is not copied."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def parts_of(x: Tensor) -> tuple[Tensor, ...]:
    """`x` in as few equal parts as have `INFERENCE_BATCH` rows at most."""
    return x.chunk(max(1, -(-len(x) // INFERENCE_BATCH)))


def in_parts(model: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """A frozen model's output for many images, some at a time."""
    return joined([model(part).float() for part in parts_of(x)])
