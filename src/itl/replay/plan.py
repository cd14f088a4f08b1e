"""An epoch with replay, planned: which samples each step takes, which slots it replays, what is written where."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from itl.engine.batches import batch_sizes, num_samples
from itl.engine.keyed_random import Key, generator, sample_without_replacement
from itl.memory.policies.base import WritePlanner
from itl.memory.slots import Slots, last_write_per_slot


@dataclass(frozen=True)
class ReplayPlan:
    """Index arrays of one epoch; step k takes `batch[k]` task samples and, per draw, `replay[k]` slots.

    `rows` `[n]`: the task's rows in step order. `targets` `[n]`: the slot each is written to, the dummy (= size) for
    nowhere. For each draw, `[sum of replay]`: `slots`, `labels`, `widths`, `weights`, and `origin`, where the slot's
    image is found: below `size` a slot as it was when the epoch began, else `size + row` of the task. `after` is what
    the memory knows of its slots when the epoch is over; `changed` the (slots, rows) whose images are new by then.
    """

    batch: np.ndarray
    replay: np.ndarray
    rows: np.ndarray
    targets: np.ndarray
    slots: list[np.ndarray]
    origin: list[np.ndarray]
    labels: list[np.ndarray]
    widths: list[np.ndarray]
    weights: list[np.ndarray]
    after: Slots
    changed: tuple[np.ndarray, np.ndarray]


def plan_epoch(
    slots: Slots,
    labels: np.ndarray,
    *,
    key: Key,
    task: int,
    width: int,
    batch: int,
    replay: int,
    draws: int,
    online: WritePlanner | None,
    limit: int | None = None,
    rows: np.ndarray | None = None,
) -> ReplayPlan:
    """Plan one epoch over the task's `labels` `[n]` with a memory that is at `slots` now (which is left unchanged).

    `online` says where the samples of every batch are written; None: the memory is frozen. `limit`: at most so many
    steps. `rows` `[n]`: the rows to take, in order; None: all of them, shuffled.
    """
    if rows is None:
        rows = generator(*key, "order").permutation(len(labels))
    if limit is not None:
        rows = rows[: num_samples(len(rows), batch, limit)]
    sizes = batch_sizes(len(rows), batch)
    steps = len(sizes)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    held = np.full(steps, slots.count)
    targets = np.full(len(rows), slots.size)
    if online is not None:
        targets = online(slots, labels[rows], generator(*key, "reservoir"))
        filled = np.maximum.accumulate(np.where(targets < slots.size, targets + 1, 0))
        held[1:] = np.maximum(held[1:], filled[starts[1:-1] - 1])  # memories are filled from the front
        for a, b in itertools.pairwise(starts):
            targets[a:b] = last_write_per_slot(targets[a:b], slots.size)
    counts = np.minimum(replay, held) if draws else np.zeros(steps, np.int64)
    picks = [_picks(generator(*key, "replay", d), held, counts) for d in range(draws)]
    after = slots.copy()
    after.seen += len(rows) if online is not None else 0
    return _follow(slots, after, labels, rows, targets, starts, counts, picks, task, width)


def balanced_rows(labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """As many rows as there are labels `[n]`, drawn with replacement so that every class has the same chance."""
    _, inverse, counts = np.unique(labels, return_inverse=True, return_counts=True)
    chance = 1.0 / counts[inverse]
    return rng.choice(len(labels), len(labels), p=chance / chance.sum())


def _picks(rng: np.random.Generator, held: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The slots every step replays, drawn without replacement from those held then; consecutive equals in one go."""
    cuts = np.flatnonzero(np.diff(held)) + 1
    out = []
    for run in np.split(np.arange(len(held)), cuts):
        if counts[run[0]]:
            out.append(sample_without_replacement(rng, len(run), int(held[run[0]]), int(counts[run[0]])).ravel())
    return np.concatenate(out) if out else np.zeros(0, np.int64)


def _follow(
    slots: Slots,
    after: Slots,
    labels: np.ndarray,
    rows: np.ndarray,
    targets: np.ndarray,
    starts: np.ndarray,
    counts: np.ndarray,
    picks: list[np.ndarray],
    task: int,
    width: int,
) -> ReplayPlan:
    """Follow the memory's slots through the epoch: what each holds at the step that replays it."""
    origin = np.arange(slots.size)
    found: list[list[list[np.ndarray]]] = [[[], [], [], []] for _ in picks]
    begins = np.concatenate([[0], np.cumsum(counts)])
    written = np.flatnonzero(targets < slots.size)
    cursor = 0
    for k in range(len(counts)):
        for d, pick in enumerate(picks):
            context = pick[begins[k] : begins[k + 1]]
            for column, array in zip(found[d], (origin, after.label, after.width, after.weight), strict=True):
                column.append(array[context])
        after.step += 1
        stop = cursor + np.searchsorted(written[cursor:], starts[k + 1])
        if stop > cursor:
            at = written[cursor:stop]
            after.write(targets[at], labels[rows[at]], task, rows[at], width)
            origin[targets[at]] = slots.size + rows[at]
            cursor = stop
    new = np.flatnonzero(origin >= slots.size)
    flat = [[np.concatenate(column) for column in one] for one in found]
    return ReplayPlan(
        batch=np.diff(starts),
        replay=counts,
        rows=rows,
        targets=targets,
        slots=picks,
        origin=[one[0] for one in flat],
        labels=[one[1] for one in flat],
        widths=[one[2] for one in flat],
        weights=[one[3] for one in flat],
        after=after,
        changed=(new, origin[new] - slots.size),
    )
