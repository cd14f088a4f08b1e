"""Rounds of training on the memory (or a task) alone; the inputs of several epochs are prepared at once.

An epoch over a memory of 200 images has seven steps, and preparing epochs one by one would take longer than training
them. The outputs of models that are frozen during a stage (features of the trunk, logits of the teacher) are computed
here, in large batches.
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
from itl.engine.image_pool import ImageSource
from itl.engine.keyed_random import Key, generator
from itl.engine.stage import StepChunk, StepInputs

# Numbers of epochs in the first chunks of a stage. Training waits for the first chunk, so it is small.
FIRST_CHUNK_EPOCHS = (2, 5)
STEPS_PER_ROUND = 200  # enough to hide the fixed cost of a round
MIN_ROUNDS = 8  # per stage, if it has so many epochs: the points of its learning curve


@dataclass
class SampleRoundPlanner:
    """Plans epochs over the first `size` rows of `source`; a `RoundPlanner` of the engine.

    Attributes:
        source: The images.
        size: Number of images.
        epochs: Number of epochs.
        steps: Number of steps, instead of `epochs`; None: `epochs` decides.
        batch: Batch size; the last batch of an epoch may be smaller.
        key: Key of all random draws; its last part is the stage's name.
        augment: Augmentation.
        prepare: `prepare(images, rows)` turns augmented uint8 images `[n, c, h, w]` of rows `[n]` into step inputs,
            each `[n, ...]`.
        bytes_per_sample: Approximate size of the prepared inputs.
        engine: Device and precision.
        independent: See `RoundPlanner`: neither the source nor `prepare` changes while the stage is trained.
    """

    source: ImageSource
    size: int
    epochs: int
    steps: int | None
    batch: int
    key: Key
    augment: Augment
    prepare: Callable[[Tensor, Tensor], StepInputs]
    bytes_per_sample: int
    engine: Engine
    independent: bool = True

    def __post_init__(self) -> None:
        """Count steps, rounds and chunks."""
        self.steps_per_epoch = num_batches(self.size, self.batch)
        self.total_steps = self.steps_per_epoch * self.epochs if self.steps is None else self.steps
        self.epochs = -(-self.total_steps // self.steps_per_epoch)
        self.epochs_per_round = max(1, min(STEPS_PER_ROUND // self.steps_per_epoch, self.epochs // MIN_ROUNDS))
        self.num_rounds = -(-self.epochs // self.epochs_per_round)
        max_steps = max(1, self.engine.input_bytes // (self.bytes_per_sample * self.batch))  # on the device at once
        self.chunks_per_epoch = -(-self.steps_per_epoch // max_steps)
        chunks_per_round = -(-self.epochs_per_round // max(1, max_steps // self.steps_per_epoch))
        self.epochs_per_chunk = -(-self.epochs_per_round // chunks_per_round)

    def epochs_done(self, index: int) -> int:
        """Number of epochs done after round `index`."""
        return min(self.epochs, (index + 1) * self.epochs_per_round)

    def first_step(self, index: int) -> int:
        """Number of steps done before round `index`."""
        return index * self.epochs_per_round * self.steps_per_epoch

    def plan(self, index: int) -> range:
        """Epochs of a round. The draws of an epoch depend only on its key, so `load` makes them."""
        return range(index * self.epochs_per_round, self.epochs_done(index))

    def load(self, plan: range) -> Iterator[StepChunk]:
        """Inputs of a round, in equal chunks of whole epochs (or parts of an epoch) within the memory budget."""
        for epochs in self._split_epochs(plan):
            drawn = [self._draw_epoch(epoch) for epoch in epochs]
            rows, draws = np.concatenate([rows for rows, _ in drawn]), Draws.cat([draws for _, draws in drawn])
            sizes = np.concatenate([batch_sizes(len(rows), self.batch) for rows, _ in drawn])
            first = 0
            for part in np.array_split(sizes, min(self.chunks_per_epoch, len(sizes))):
                stop = first + int(part.sum())
                yield self._chunk(rows[first:stop], draws[first:stop], part)
                first = stop

    def commit(self, plan: range) -> None:
        """Do nothing: the steps change nothing outside the stage."""

    def _draw_epoch(self, epoch: int) -> tuple[np.ndarray, Draws]:
        """Rows of an epoch in order `[n]`, and their augmentation; the last epoch of a stage may be shorter."""
        count = num_samples(self.size, self.batch, self.total_steps - epoch * self.steps_per_epoch)
        rows = generator(*self.key, epoch, "order").permutation(self.size)[:count]
        return rows, self.augment.draw(generator(*self.key, epoch, "views"), len(rows))

    def _split_epochs(self, plan: range) -> list[range]:
        """Split a round's epochs into equal chunks; those of the first round begin with small chunks."""
        sizes = [min(k, self.epochs_per_chunk) for k in FIRST_CHUNK_EPOCHS]
        small = sizes if plan.start == 0 and self.engine.capture else []
        small_edges = [k for k in itertools.accumulate(small) if k < len(plan)]
        first = small_edges[-1] if small_edges else 0
        count = -(-(len(plan) - first) // self.epochs_per_chunk)
        edges = [0, *small_edges[:-1], *np.linspace(first, len(plan), count + 1).round().astype(int).tolist()]
        return [plan[a:b] for a, b in itertools.pairwise(edges) if b > a]

    def _max_steps_per_chunk(self, size: int) -> int:
        """Number of steps of batch size `size` in the longest chunk; 0 (unknown) if epochs are split."""
        if self.chunks_per_epoch > 1:
            return 0
        return self.epochs_per_chunk * (self.size // self.batch if size == self.batch else 1)

    def _chunk(self, rows: np.ndarray, draws: Draws, sizes: np.ndarray) -> StepChunk:
        """Steps over consecutive `rows` `[n]`, with batch sizes `sizes` `[steps]`, grouped by batch size."""
        starts = np.concatenate([[0], np.cumsum(sizes)])
        positions: dict[int, list[np.ndarray]] = {}
        order: list[tuple[int, int]] = []
        for run in np.split(np.arange(len(sizes)), np.flatnonzero(np.diff(sizes)) + 1):
            size = int(sizes[run[0]])
            positions.setdefault(size, []).append(np.arange(starts[run[0]], starts[run[-1] + 1]))
            order.append((list(positions).index(size), len(run)))
        # The rows are sorted by group before they are prepared, so that the prepared inputs need not be moved.
        index = np.concatenate([part for parts in positions.values() for part in parts])
        sorted_rows = torch.from_numpy(rows[index])
        images = self.augment(self.source.gather(sorted_rows), draws[torch.from_numpy(index)])
        flat = self.prepare(images, sorted_rows)
        groups, first = [], 0
        for size, parts in positions.items():
            stop = first + sum(map(len, parts))
            groups.append({name: t[first:stop].unflatten(0, (-1, size)) for name, t in flat.items()})
            first = stop
        return StepChunk(groups, order, capacity=tuple(map(self._max_steps_per_chunk, positions)))


def concatenate(chunks: list[Tensor]) -> Tensor:
    """Concatenate along the first axis; a single chunk is not copied."""
    return chunks[0] if len(chunks) == 1 else torch.cat(chunks)


def split_in_chunks(x: Tensor) -> tuple[Tensor, ...]:
    """Split `x` into as few equal chunks as possible of at most `INFERENCE_BATCH` rows."""
    return x.chunk(max(1, -(-len(x) // INFERENCE_BATCH)))


def forward_in_chunks(model: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Output of a frozen model for many images, computed in chunks, as float32."""
    return concatenate([model(chunk).float() for chunk in split_in_chunks(x)])
