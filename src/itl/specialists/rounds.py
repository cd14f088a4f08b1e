"""A specialist's training: planned epochs with replay, their augmented views, and the stage that the engine runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from itl.augment import Augment, Draws
from itl.engine.device import Engine
from itl.engine.loop import Batch, Descent, Span, Stage
from itl.engine.pool import Pool
from itl.engine.random import Key, generator
from itl.engine.views import Normalise
from itl.memory import Memory
from itl.memory.plan import ReplayPlan, plan_epoch
from itl.specialists.base import Specialist, View


@dataclass(frozen=True)
class Epoch:
    """A planned epoch with the augmentation of each of its views."""

    replay: ReplayPlan
    now: Draws
    pasts: list[Draws]


@dataclass
class ReplayRounds:
    """The epochs of a specialist on one task; a round is an epoch.

    `pool` and `labels` are the task's, `key` is (seed, task): with the epoch's number it determines every draw.
    """

    specialist: Specialist
    pool: Pool
    labels: np.ndarray
    memory: Memory
    task: int
    width: int
    key: Key
    augment_task: Augment
    augment_memory: Augment
    engine: Engine

    def __post_init__(self) -> None:
        """Count the rounds and their steps; planning begins where the memory is now."""
        settings = self.specialist.settings
        self.per_epoch = -(-len(self.labels) // settings.batch)
        self.total = self.per_epoch * settings.epochs
        if settings.steps is not None:
            self.total = min(self.total, settings.steps)
        self.count = -(-self.total // self.per_epoch)
        self.planned = self.memory.slots
        self.ragged = self.memory.ragged(self.width)

    def epoch(self, index: int) -> int:
        """Epochs done when round `index` is."""
        return index + 1

    def first(self, index: int) -> int:
        """Steps done before round `index`."""
        return index * self.per_epoch

    def plan(self, index: int) -> Epoch:
        """Draw everything epoch `index` needs."""
        settings = self.specialist.settings
        key = (*self.key, "specialist", index)
        replay = plan_epoch(
            self.planned,
            self.labels,
            key=key,
            task=self.task,
            width=self.width,
            batch=settings.batch,
            replay=settings.replay,
            draws=self.specialist.draws if self.memory.size else 0,
            online=self.memory.policy.online,
            limit=min(self.per_epoch, self.total - self.first(index)),
        )
        self.planned = replay.after
        now = self.augment_task.draw(generator(*key, "views"), len(replay.rows))
        pasts = [
            self.augment_memory.draw(generator(*key, "replayed views", d), len(slots))
            for d, slots in enumerate(replay.slots)
        ]
        return Epoch(replay, now, pasts)

    def load(self, plan: Epoch) -> Iterator[Span]:
        """The epoch's views, in spans whose size the engine's budget bounds."""
        replay = plan.replay
        image = self.memory.pixels[0].numel()
        step = image * int((replay.batch + replay.replay * len(replay.slots)).max())
        each = max(1, self.engine.budget // step)
        for first in range(0, len(replay.batch), each):
            yield self._span(plan, first, min(first + each, len(replay.batch)))

    def commit(self, plan: Epoch) -> None:
        """Take the epoch's reservoir writes into the memory."""
        self.memory.put(plan.replay.changed[0], self.pool, plan.replay.changed[1])
        self.memory.slots = plan.replay.after

    def _span(self, plan: Epoch, first: int, stop: int) -> Span:
        """Steps `first` to `stop`, grouped by shape."""
        replay = plan.replay
        batch, past = replay.batch[first:stop], replay.replay[first:stop]
        flat = self._inputs(plan, slice(*_range(replay.batch, first, stop)), slice(*_range(replay.replay, first, stop)))
        cuts = np.flatnonzero((np.diff(batch) != 0) | (np.diff(past) != 0)) + 1
        groups: dict[tuple[int, int], list[Batch]] = {}
        order: list[tuple[int, int]] = []
        for run in np.split(np.arange(len(batch)), cuts):
            shape = (int(batch[run[0]]), int(past[run[0]]))
            groups.setdefault(shape, []).append(_cut(flat, batch, past, run))
            order.append((list(groups).index(shape), len(run)))
        return Span([_stack(parts) for parts in groups.values()], order)

    def _inputs(self, plan: Epoch, now: slice, past: slice) -> Batch:
        """Flat inputs of the samples in `now` and the replayed ones in `past`, whose names end in their draw."""
        replay, send = plan.replay, self.engine.send
        rows = torch.from_numpy(replay.rows[now])
        out = {
            "x": self.augment_task(self.pool.gather(rows), plan.now[now]),
            "y": send(torch.from_numpy(self.labels[replay.rows[now]])),
            "target": send(torch.from_numpy(replay.targets[now])),
        }
        for d, slots in enumerate(replay.slots):
            if past.start == past.stop:
                continue  # the memory is still empty
            out[f"x{d}"] = self.augment_memory(self._origin(replay.origin[d][past]), plan.pasts[d][past])
            out[f"y{d}"] = send(torch.from_numpy(replay.labels[d][past]))
            out[f"slot{d}"] = send(torch.from_numpy(slots[past]))
            if self.ragged:
                out[f"width{d}"] = send(torch.from_numpy(replay.widths[d][past]))
        return out

    def _origin(self, origin: np.ndarray) -> Tensor:
        """Images of replayed samples: some lie in the memory, some were written to it by this very epoch."""
        size = self.memory.size
        images = self.memory.gather(torch.from_numpy(np.where(origin < size, origin, size)))
        fresh = np.flatnonzero(origin >= size)
        if fresh.size:
            rows = self.pool.gather(torch.from_numpy(origin[fresh] - size))
            images.index_copy_(0, self.engine.send(torch.from_numpy(fresh)), rows)
        return images


def _range(sizes: np.ndarray, first: int, stop: int) -> tuple[int, int]:
    return int(sizes[:first].sum()), int(sizes[:stop].sum())


def _cut(flat: Batch, batch: np.ndarray, past: np.ndarray, run: np.ndarray) -> Batch:
    """The inputs of a run of steps of one shape, `[steps, samples, ...]`; a step without replay has none for it."""
    out: Batch = {}
    for name, tensor in flat.items():
        sizes = past if name[-1].isdigit() else batch
        each = int(sizes[run[0]])
        if each:
            a, b = _range(sizes, run[0], run[-1] + 1)
            out[name] = tensor[a:b].unflatten(0, (len(run), each))
    return out


def _stack(parts: list[Batch]) -> Batch:
    return parts[0] if len(parts) == 1 else {name: torch.cat([p[name] for p in parts]) for name in parts[0]}


def specialist_stage(rounds: ReplayRounds, net: nn.Module, normalise: Normalise) -> Stage:
    """The stage that trains `net` by the specialist's loss."""
    specialist, memory = rounds.specialist, rounds.memory
    settings = specialist.settings

    def loss(batch: Batch) -> Tensor:
        now = View(normalise(batch["x"]), batch["y"])
        pasts = []
        for d in range(specialist.draws):
            if f"x{d}" in batch:
                stored = None if memory.logits is None else memory.logits.index_select(0, batch[f"slot{d}"])
                pasts.append(View(normalise(batch[f"x{d}"]), batch[f"y{d}"], stored, batch.get(f"width{d}")))
        value = specialist.loss(net, now, tuple(pasts))
        if memory.logits is not None and now.logits is not None:
            memory.logits.index_copy_(0, batch["target"], now.logits.float())
        return value

    changed = [*net.buffers()] + ([memory.logits] if memory.logits is not None else [])
    descent = Descent(settings.lr, settings.momentum, settings.weight_decay / 2, settings.schedule)
    return Stage(
        "specialist",
        dict(net.named_parameters()),
        descent,
        rounds,
        loss,
        changed,
        net=net,
        capturable=specialist.capturable,
    )
