"""The index arrays of one epoch with replay: which samples each step takes, which slots it replays and writes."""

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
    """Index arrays of one epoch.

    Attributes:
        batch: Task samples of each step `[steps]`.
        replay: Replayed samples of each step and draw `[steps]`.
        rows: Rows of the task in the order of the steps `[n]`.
        targets: The slot that each row is written to `[n]`; the memory's size means nowhere.
        slots: The slots to replay, in the order of the steps; one array for each draw, like the following.
        origin: Where the image of a replayed slot is found: values below the memory's size are slots, with their
            contents at the start of the epoch; others are the memory's size plus a row of the task.
        labels: Labels of the replayed samples.
        widths: How many columns of their stored logits were known when they were stored.
        weights: Their sample weights.
        after: The memory's slots after the epoch.
        changed: The slots whose images change in the epoch, and the rows of the task written there last.
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
    """Plan one epoch.

    Args:
        slots: The memory's slots at the start of the epoch; not modified.
        labels: Labels of the task `[n]`.
        key: Key of the epoch's random draws.
        task: Index of the task, stored with the samples written.
        width: Number of outputs of the network, stored with the samples written.
        batch: Batch size.
        replay: Samples per draw from memory; fewer while the memory holds fewer.
        draws: Number of draws from memory per step.
        online: Plans the slot that each sample is written to; None if the memory is frozen.
        limit: Maximum number of steps.
        rows: The rows to take, in order; None for all of them, shuffled.
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
        held[1:] = np.maximum(held[1:], filled[starts[1:-1] - 1])  # free slots are filled in order
        for a, b in itertools.pairwise(starts):
            targets[a:b] = last_write_per_slot(targets[a:b], slots.size)
    counts = np.minimum(replay, held) if draws else np.zeros(steps, np.int64)
    picks = [_draw_slots(generator(*key, "replay", d), held, counts) for d in range(draws)]
    after = slots.copy()
    after.seen += len(rows) if online is not None else 0
    return _track_slots(slots, after, labels, rows, targets, starts, counts, picks, task, width)


def balanced_rows(labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """`n` rows drawn with replacement so that all classes among the labels `[n]` are equally likely."""
    _, inverse, counts = np.unique(labels, return_inverse=True, return_counts=True)
    chance = 1.0 / counts[inverse]
    return rng.choice(len(labels), len(labels), p=chance / chance.sum())


def stratified_rows(labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """`n` rows, shuffled, with equally many (to within one) of each class among the labels `[n]`.

    A row is drawn again only when all rows of its class were drawn.
    """
    classes = rng.permutation(np.unique(labels))
    shares = [len(part) for part in np.array_split(np.arange(len(labels)), len(classes))]
    rows = []
    for label, share in zip(classes, shares, strict=True):
        own = np.flatnonzero(labels == label)
        rows += [rng.permutation(own) for _ in range(share // len(own))]
        rows.append(rng.permutation(own)[: share % len(own)])
    return rng.permutation(np.concatenate(rows))


def _draw_slots(rng: np.random.Generator, held: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The slots that every step replays, drawn without replacement from the `held[k]` slots filled at step k."""
    cuts = np.flatnonzero(np.diff(held)) + 1  # runs of steps with equally many filled slots share one draw
    out = []
    for run in np.split(np.arange(len(held)), cuts):
        if counts[run[0]]:
            out.append(sample_without_replacement(rng, len(run), int(held[run[0]]), int(counts[run[0]])).ravel())
    return np.concatenate(out) if out else np.zeros(0, np.int64)


def _track_slots(
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
    """Complete the plan by tracking the slots' contents through the epoch, up to the step that replays each."""
    origin = np.arange(slots.size)
    found: list[list[list[np.ndarray]]] = [[[], [], [], []] for _ in picks]
    begins = np.concatenate([[0], np.cumsum(counts)])
    written = np.flatnonzero(targets < slots.size)
    cursor = 0
    for k in range(len(counts)):
        for d, pick in enumerate(picks):
            replayed = pick[begins[k] : begins[k + 1]]
            for column, array in zip(found[d], (origin, after.label, after.width, after.weight), strict=True):
                column.append(array[replayed])
        after.step += 1
        stop = cursor + np.searchsorted(written[cursor:], starts[k + 1])
        if stop > cursor:
            samples = written[cursor:stop]
            after.write(targets[samples], labels[rows[samples]], task, rows[samples], width)
            origin[targets[samples]] = slots.size + rows[samples]
            cursor = stop
    new = np.flatnonzero(origin >= slots.size)
    by_draw = [[np.concatenate(column) for column in columns] for columns in found]
    return ReplayPlan(
        batch=np.diff(starts),
        replay=counts,
        rows=rows,
        targets=targets,
        slots=picks,
        origin=[columns[0] for columns in by_draw],
        labels=[columns[1] for columns in by_draw],
        widths=[columns[2] for columns in by_draw],
        weights=[columns[3] for columns in by_draw],
        after=after,
        changed=(new, origin[new] - slots.size),
    )
