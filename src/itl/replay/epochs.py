"""A specialist's training: planned epochs with replay, their augmented views, and the stage that the engine runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from itl.augment import Augment, Draws
from itl.engine.batches import num_batches
from itl.engine.keyed_random import Key, generator
from itl.engine.pool import ConcatImageSource, ImageSource
from itl.engine.stage import Stage, StepChunk, StepInputs
from itl.replay.online_step import DRAWS, OnlineSelectionStep, numbered, to_store, under
from itl.replay.plan import ReplayPlan, balanced, plan_epoch
from itl.specialists.base import Batch, Phase, Specialist


@dataclass(frozen=True)
class Epoch:
    """A planned epoch with the augmentation of each of its views (several an image, for some methods)."""

    replay: ReplayPlan
    now: list[Draws]
    pasts: list[list[Draws]]
    extra: dict[str, np.ndarray]
    offers: dict[str, np.ndarray]  # what the memory drew for the samples offered to it
    foreseen: np.ndarray | None  # what its candidates asked of the network before


@dataclass
class ReplayRoundPlanner:
    """The epochs of a specialist's phase on one task; a round is an epoch.

    `pool` and `labels` are the data it goes over (the task's, for most). The specialist's key, the phase's name and the
    epoch's number determine every draw.
    """

    specialist: Specialist
    phase: Phase
    pool: ImageSource
    labels: np.ndarray
    independent = False  # a round may replay what the one before put into the memory

    def __post_init__(self) -> None:
        """Count the rounds and their steps; planning begins where the memory is now."""
        context, phase = self.specialist.context, self.phase
        self.memory, self.engine = context.memory, context.engine
        self.augment_task = context.augment_task if phase.augmented else Augment(padding=0, flip=False)
        self.augment_memory = context.augment_memory
        self.width = context.net.classifier.out_features
        self.per_epoch = num_batches(len(self.labels), phase.batch)
        self.total_steps = self.per_epoch * phase.epochs
        if phase.steps is not None:
            self.total_steps = min(self.total_steps, phase.steps)
        self.num_rounds = -(-self.total_steps // self.per_epoch)
        self.planned = self.memory.slots
        self.ragged = self.memory.has_partial_logits(self.width)

    def epochs_done(self, index: int) -> int:
        """Epochs done when round `index` is."""
        return index + 1

    def first_step(self, index: int) -> int:
        """Steps done before round `index`."""
        return index * self.per_epoch

    def plan(self, index: int) -> Epoch:
        """Draw everything epoch `index` needs."""
        specialist, phase, context = self.specialist, self.phase, self.specialist.context
        if phase.replays:
            specialist.epoch_starts(index)
        key = (*context.key, phase.name, index)
        replay = plan_epoch(
            self.planned,
            self.labels,
            key=key,
            task=context.task,
            width=self.width,
            batch=phase.batch,
            replay=specialist.settings.replay,
            draws=specialist.draws if self.memory.size and phase.replays else 0,
            online=self.memory.policy.plan_writes if phase.replays and self.memory.policy.plans_writes else None,
            limit=min(self.per_epoch, self.total_steps - self.first_step(index)),
            rows=balanced(self.labels, generator(*key, "order")) if phase.balanced else None,
        )
        steps, clock = len(replay.batch), self.planned.step
        extra = specialist.inputs(generator(*key, "inputs"), steps, clock) if phase.replays else {}
        offers, foreseen = self._offer(index, replay, generator(*key, "offers")) if phase.replays else ({}, None)
        self.planned = replay.after
        now = self._draw(self.augment_task, len(replay.rows), (*key, "views"))
        pasts = [
            self._draw(self.augment_memory, len(slots), (*key, "replayed views", d))
            for d, slots in enumerate(replay.slots)
        ]
        return Epoch(replay, now, pasts, extra, offers, foreseen)

    def _offer(
        self, index: int, replay: ReplayPlan, rng: np.random.Generator
    ) -> tuple[dict[str, np.ndarray], np.ndarray | None]:
        """What a memory that looks at the network draws for an epoch's samples, and what it asks before it."""
        memory = self.memory
        if memory.candidates is not None:
            foreseen = memory.candidates.prepare_epoch(index, self.labels, self.specialist.context.model_outputs())
            return memory.candidates.draw_inputs(rng, replay.rows, foreseen), foreseen
        if memory.selector is not None:
            step = np.repeat(np.arange(1, len(replay.batch) + 1), replay.batch)
            known = {"row": replay.rows, "written": self.planned.step + step}
            return {**known, **memory.selector.draw_inputs(self.planned, replay.targets, rng)}, None
        return {}, None

    def _draw(self, augment: Augment, count: int, key: Key) -> list[Draws]:
        """The augmentation of every view: the first by `key`, further ones with their number behind it."""
        views = self.specialist.views if self.phase.replays else 1
        return [augment.draw(generator(*key, *([] if v == 0 else [f"view {v}"])), count) for v in range(views)]

    def load(self, plan: Epoch) -> Iterator[StepChunk]:
        """The epoch's views, in spans whose size the engine's budget bounds."""
        replay = plan.replay
        image = self.memory.pixels[0].numel()
        step = image * len(plan.now) * int((replay.batch + replay.replay * len(replay.slots)).max())
        step += image * sum(plan.extra[name].shape[1] for name in self.specialist.looks_up if name in plan.extra)
        each = max(1, self.engine.input_bytes // step)
        for first in range(0, len(replay.batch), each):
            yield self._span(plan, first, min(first + each, len(replay.batch)))

    def commit(self, plan: Epoch) -> None:
        """Take the epoch's writes into the memory."""
        if self.memory.selector is not None and self.phase.replays:  # the steps have written the images
            self.memory.selector.copy_to(plan.replay.after)
        else:
            self.memory.write_images(plan.replay.changed[0], self.pool, plan.replay.changed[1])
        self.memory.slots = plan.replay.after
        if self.memory.candidates is not None:
            self.memory.candidates.commit_epoch(plan.foreseen)

    def _span(self, plan: Epoch, first: int, stop: int) -> StepChunk:
        """Steps `first` to `stop`, grouped by shape."""
        replay = plan.replay
        batch, past = replay.batch[first:stop], replay.replay[first:stop]
        flat = self._inputs(plan, slice(*_range(replay.batch, first, stop)), slice(*_range(replay.replay, first, stop)))
        for name, array in plan.extra.items():
            flat |= self._extra(name, array[first:stop])
        cuts = np.flatnonzero((np.diff(batch) != 0) | (np.diff(past) != 0)) + 1
        groups: dict[tuple[int, int], list[StepInputs]] = {}
        order: list[tuple[int, int]] = []
        for run in np.split(np.arange(len(batch)), cuts):
            shape = (int(batch[run[0]]), int(past[run[0]]))
            groups.setdefault(shape, []).append(_cut(flat, batch, past, run))
            order.append((list(groups).index(shape), len(run)))
        return StepChunk([_stack(parts) for parts in groups.values()], order)

    def _extra(self, name: str, array: np.ndarray) -> StepInputs:
        """An input of the specialist's own for some steps `[steps, ...]`; for rows it looks up, what lies there."""
        if name not in self.specialist.looks_up:
            return {f"extra.{name}": self.engine.send(torch.from_numpy(array))}
        images = self.pool.gather(torch.from_numpy(array.reshape(-1))).unflatten(0, array.shape)
        labels = self.engine.send(torch.from_numpy(self.labels[array]))
        return {f"extra.{name}.x": images, f"extra.{name}.y": labels}

    def _inputs(self, plan: Epoch, now: slice, past: slice) -> StepInputs:
        """Flat inputs of the samples in `now` and of the replayed ones in `past`, whose names begin with their draw."""
        replay, send = plan.replay, self.engine.send
        images = self.pool.gather(torch.from_numpy(replay.rows[now]))
        out = {numbered("x", v): self.augment_task(images, draws[now]) for v, draws in enumerate(plan.now)}
        out["y"] = send(torch.from_numpy(self.labels[replay.rows[now]]))
        out["target"] = send(torch.from_numpy(replay.targets[now]))
        live = self.memory.selector is not None and bool(plan.offers)
        out |= {f"offer.{name}": send(torch.from_numpy(array[now])) for name, array in plan.offers.items()}
        if live:
            out["raw"] = images
        for d, slots in enumerate(replay.slots):
            if past.start == past.stop:
                continue  # the memory is still empty
            out[f"{d}.slot"] = send(torch.from_numpy(slots[past]))
            if live:  # what lies there by then, and so its view, is the step's business
                there = (lambda t: t) if self.augment_memory.policy else send  # the host sorts AutoAugment's operations
                for v, draws in enumerate(plan.pasts[d]):
                    out |= {numbered(f"{d}.{part}", v): there(getattr(draws, part)[past]) for part in DRAWS}
                continue
            images = self._origin(replay.origin[d][past])
            for v, draws in enumerate(plan.pasts[d]):
                out[numbered(f"{d}.x", v)] = self.augment_memory(images, draws[past])
            out[f"{d}.y"] = send(torch.from_numpy(replay.labels[d][past]))
            if self.memory.weighted:
                out[f"{d}.weight"] = send(torch.from_numpy(replay.weights[d][past]))
            if self.ragged:
                out[f"{d}.width"] = send(torch.from_numpy(replay.widths[d][past]))
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


def _cut(flat: StepInputs, batch: np.ndarray, past: np.ndarray, run: np.ndarray) -> StepInputs:
    """The inputs of a run of steps of one shape, `[steps, samples, ...]`; a step without replay has none for it."""
    out: StepInputs = {}
    for name, tensor in flat.items():
        if name.startswith("extra."):  # one entry a step
            out[name] = tensor[run[0] : run[-1] + 1]
            continue
        sizes = past if name[0].isdigit() else batch
        each = int(sizes[run[0]])
        if each:
            a, b = _range(sizes, run[0], run[-1] + 1)
            out[name] = tensor[a:b].unflatten(0, (len(run), each))
    return out


def _stack(parts: list[StepInputs]) -> StepInputs:
    return parts[0] if len(parts) == 1 else {name: torch.cat([p[name] for p in parts]) for name in parts[0]}


def specialist_stage(rounds: ReplayRoundPlanner) -> Stage:
    """The stage that trains the network by the loss of the specialist's phase."""
    specialist, phase, memory = rounds.specialist, rounds.phase, rounds.memory
    net, normalize = specialist.context.net, specialist.context.normalize
    _ = (
        specialist.context.taught,
        specialist.context.own,
        specialist.context.old,
    )  # made before a step could be captured
    seen: list[tuple[StepInputs, Batch, tuple[Batch, ...]]] = []  # by the step's loss, for what comes after the update
    live: OnlineSelectionStep | None = None
    if memory.selector is not None and phase.replays:
        context, augment = specialist.context, rounds.augment_memory
        live = OnlineSelectionStep(memory, memory.selector, augment, context.task, rounds.width, specialist.views)

    def view(batch: StepInputs, prefix: str) -> Batch:
        others = (normalize(batch[f"{prefix}x.{v}"]) for v in range(1, specialist.views) if f"{prefix}x.{v}" in batch)
        return Batch(normalize(batch[f"{prefix}x"]), batch[f"{prefix}y"], others=tuple(others))

    def loss(batch: StepInputs) -> Tensor:
        if live is not None:
            batch = live.filled_in(batch, specialist.draws, rounds.ragged)
        now, pasts = view(batch, ""), []
        now.extra, now.slots = under(batch, "extra."), batch["target"]
        if live is not None:
            now.extra["raw"] = batch["raw"]
        for d in range(specialist.draws):
            if f"{d}.x" in batch:
                past = view(batch, f"{d}.")
                past.slots, past.widths = batch[f"{d}.slot"], batch.get(f"{d}.width")
                past.weights = batch.get(f"{d}.weight")
                past.logits = None if memory.logits is None else memory.logits.index_select(0, past.slots)
                pasts.append(past)
        value = phase.loss(net, now, tuple(pasts))
        if memory.logits is not None:
            for past in pasts:
                if past.renewed is not None and past.slots is not None:
                    memory.logits.index_copy_(0, past.slots, past.renewed.float())
            if phase.replays and memory.policy.plans_writes and live is None:
                memory.logits.index_copy_(0, batch["target"], to_store(now))
        if memory.candidates is not None and phase.replays:
            offer = {**under(batch, "offer."), "y": now.y}
            memory.candidates.observe(now.said if now.logits is None else now.logits, offer)
        seen[:] = [(batch, now, tuple(pasts))]
        return value

    @torch.no_grad()
    def after() -> None:
        batch, now, pasts = seen.pop()
        specialist.after_step(net, now, pasts)
        if live is not None:
            live.take(batch, now, pasts)

    changed = [*net.buffers(), *specialist.changed()] + ([memory.logits] if memory.logits is not None else [])
    if memory.candidates is not None:
        changed += memory.candidates.tensors().values()
    if live is not None:
        changed += [memory.pixels, *live.live.tensors()]
    net.train(phase.training)
    return Stage(
        phase.name,
        phase.parameters,
        phase.optimizer,
        rounds,
        loss,
        changed,
        net=net,
        capturable=specialist.capturable and (live is None or live.augment.policy is None),
        transform_gradients=specialist.gradient if phase.replays and specialist.turns_gradients else None,
        after_step=after if phase.replays else None,
    )


Data = tuple[ImageSource, np.ndarray]


def data_over(phase: Phase, specialist: Specialist, past: Sequence[Data]) -> Data:
    """The images and labels a phase goes over; `past` are those of the tasks before, for a method that keeps them."""
    context = specialist.context
    own: Data = (context.pool, context.labels)
    held: Data = (context.memory, context.memory.labels.copy())
    parts: list[Data] = {"task": [own], "memory": [held], "both": [own, held], "all": [*past, own]}[phase.over]
    parts = [(source, labels) for source, labels in parts if len(labels)]
    if len(parts) == 1:
        return parts[0]
    return ConcatImageSource([(source, len(labels)) for source, labels in parts]), np.concatenate(
        [labels for _, labels in parts]
    )
