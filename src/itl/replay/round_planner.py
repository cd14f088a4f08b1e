"""Rounds of a specialist's training: plans its epochs on the CPU and builds the inputs of their steps on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from itl.augment import Augment, Draws
from itl.engine.batches import num_batches
from itl.engine.image_pool import ConcatImageSource, ImageSource
from itl.engine.keyed_random import Key, generator
from itl.engine.stage import StepChunk, StepInputs
from itl.replay.epoch_plan import ReplayPlan, balanced_rows, plan_epoch, stratified_rows
from itl.replay.step_inputs import ReplayInputs, ReplayStepInputs, TaskInputs, flatten
from itl.specialists.base import LabeledImages, Phase, Specialist

LabeledSource = tuple[ImageSource, np.ndarray]


@dataclass(frozen=True)
class PlannedEpoch:
    """All random choices of one epoch.

    Attributes:
        replay: Which samples each step takes, replays and writes.
        task_draws: Augmentation of the task's samples, for each of the specialist's views.
        replay_draws: Augmentation of the replayed samples, for each draw from memory and each view.
        extra: What the specialist drew, `[steps, ...]` by name.
        offers: What the memory policy drew for each of the task's samples, `[n]` by name.
        candidate_inputs: What the memory's candidates computed from the network before the epoch.
    """

    replay: ReplayPlan
    task_draws: list[Draws]
    replay_draws: list[list[Draws]]
    extra: dict[str, np.ndarray]
    offers: dict[str, np.ndarray]
    candidate_inputs: np.ndarray | None


@dataclass
class ReplayRoundPlanner:
    """Plans the epochs of a specialist's phase on one task; a round is one epoch.

    `pool` and `labels` are the training data (for most methods, the task's). Every draw is keyed by the context's key,
    the phase's name and the epoch.
    """

    specialist: Specialist
    phase: Phase
    pool: ImageSource
    labels: np.ndarray
    independent = False  # a round may replay samples that the previous one wrote to memory

    def __post_init__(self) -> None:
        """Count rounds and steps; planning starts from the memory's current slots."""
        context, phase = self.specialist.context, self.phase
        self.memory, self.engine = context.memory, context.engine
        self.augment_task = context.augment_task if phase.augmented else Augment(padding=0, flip=False)
        self.augment_memory = context.augment_memory
        self.width = context.net.classifier.out_features
        self.per_epoch = num_batches(len(self.labels), phase.batch_size)
        self.total_steps = self.per_epoch * phase.epochs
        if phase.steps is not None:
            self.total_steps = min(self.total_steps, phase.steps)
        self.num_rounds = -(-self.total_steps // self.per_epoch)
        self.planned = self.memory.slots
        self.ragged = self.memory.has_partial_logits(self.width)

    def epochs_done(self, index: int) -> int:
        """Number of epochs done after round `index`."""
        return index + 1

    def first_step(self, index: int) -> int:
        """Number of steps done before round `index`."""
        return index * self.per_epoch

    # ------------------------------------------------------------------ plan

    def plan(self, index: int) -> PlannedEpoch:
        """Draw everything that epoch `index` needs."""
        specialist, phase, context = self.specialist, self.phase, self.specialist.context
        if phase.replays:
            specialist.on_epoch_start(index)
        key = (*context.key, phase.name, index)
        replay = plan_epoch(
            self.planned,
            self.labels,
            key=key,
            task=context.task,
            width=self.width,
            batch=phase.batch_size,
            replay=specialist.settings.replay,
            draws=specialist.num_replay_batches if self.memory.size and phase.replays else 0,
            online=self.memory.policy.plan_writes if phase.replays and self.memory.policy.plans_writes else None,
            limit=min(self.per_epoch, self.total_steps - self.first_step(index)),
            rows=self._rows(generator(*key, "order")),
        )
        steps, first = len(replay.batch), self.planned.step
        extra = specialist.draw_inputs(generator(*key, "inputs"), steps, first) if phase.replays else {}
        offers, candidate_inputs = (
            self._draw_offers(index, replay, generator(*key, "offers")) if phase.replays else ({}, None)
        )
        self.planned = replay.after
        task_draws = self._draw_views(self.augment_task, len(replay.rows), (*key, "views"))
        replay_draws = [
            self._draw_views(self.augment_memory, len(slots), (*key, "replayed views", d))
            for d, slots in enumerate(replay.slots)
        ]
        return PlannedEpoch(replay, task_draws, replay_draws, extra, offers, candidate_inputs)

    def _rows(self, rng: np.random.Generator) -> np.ndarray | None:
        """The rows of a class-balanced epoch; None for all rows, shuffled."""
        if self.phase.stratified:
            return stratified_rows(self.labels, rng)
        return balanced_rows(self.labels, rng) if self.phase.balanced else None

    def _draw_offers(
        self, index: int, replay: ReplayPlan, rng: np.random.Generator
    ) -> tuple[dict[str, np.ndarray], np.ndarray | None]:
        """Draws of a memory policy that depends on the network, and what its candidates compute before the epoch."""
        memory = self.memory
        if memory.candidates is not None:
            candidate_inputs = memory.candidates.prepare_epoch(
                index, self.labels, self.specialist.context.model_outputs()
            )
            return memory.candidates.draw_inputs(rng, replay.rows, candidate_inputs), candidate_inputs
        if memory.selector is not None:
            step = np.repeat(np.arange(1, len(replay.batch) + 1), replay.batch)
            known = {"row": replay.rows, "written": self.planned.step + step}
            return {**known, **memory.selector.draw_inputs(self.planned, replay.targets, rng)}, None
        return {}, None

    def _draw_views(self, augment: Augment, count: int, key: Key) -> list[Draws]:
        """Augmentation of each view: the first is keyed by `key`, the others by `key` and their number."""
        views = self.specialist.num_views if self.phase.replays else 1
        return [augment.draw(generator(*key, *([] if v == 0 else [f"view {v}"])), count) for v in range(views)]

    def commit(self, plan: PlannedEpoch) -> None:
        """Update the memory after the epoch was trained."""
        if self.memory.selector is not None and self.phase.replays:  # the steps have written the images
            self.memory.selector.copy_to(plan.replay.after)
        else:
            self.memory.write_images(plan.replay.changed[0], self.pool, plan.replay.changed[1])
        self.memory.slots = plan.replay.after
        if self.memory.candidates is not None:
            self.memory.candidates.commit_epoch(plan.candidate_inputs)

    # ------------------------------------------------------------------ build inputs

    def load(self, plan: PlannedEpoch) -> Iterator[StepChunk]:
        """Build the epoch's inputs in chunks that fit the engine's memory budget."""
        replay = plan.replay
        image = self.memory.pixels[0].numel()
        step = image * len(plan.task_draws) * int((replay.batch + replay.replay * len(replay.slots)).max())
        step += image * sum(plan.extra[name].shape[1] for name in self.specialist.lookup_inputs if name in plan.extra)
        steps_per_chunk = max(1, self.engine.input_bytes // step)
        for first in range(0, len(replay.batch), steps_per_chunk):
            yield self._chunk(plan, first, min(first + steps_per_chunk, len(replay.batch)))

    def _chunk(self, plan: PlannedEpoch, first: int, stop: int) -> StepChunk:
        """Steps `first` to `stop`, grouped by shape."""
        batch_sizes, replay_sizes = plan.replay.batch[first:stop], plan.replay.replay[first:stop]
        inputs = self._inputs(plan, slice(first, stop))
        cuts = np.flatnonzero((np.diff(batch_sizes) != 0) | (np.diff(replay_sizes) != 0)) + 1
        groups: dict[tuple[int, int], list[StepInputs]] = {}
        order: list[tuple[int, int]] = []
        for run in np.split(np.arange(len(batch_sizes)), cuts):
            shape = (int(batch_sizes[run[0]]), int(replay_sizes[run[0]]))
            steps = slice(int(run[0]), int(run[-1]) + 1)
            task, replay = (_by_step(sizes, steps) for sizes in (batch_sizes, replay_sizes))
            groups.setdefault(shape, []).append(flatten(inputs.select(task, replay if shape[1] else None, steps)))
            order.append((list(groups).index(shape), len(run)))
        return StepChunk([_concatenate(parts) for parts in groups.values()], order)

    def _inputs(self, plan: PlannedEpoch, steps: slice) -> ReplayStepInputs:
        """Inputs of all samples of some steps, one after another."""
        samples, replayed = _samples(plan.replay.batch, steps), _samples(plan.replay.replay, steps)
        draws = range(len(plan.replay.slots)) if replayed.start < replayed.stop else ()  # none from an empty memory
        extra, lookups = {}, {}
        for name, array in plan.extra.items():
            if name in self.specialist.lookup_inputs:
                lookups[name] = self._look_up(array[steps])
            else:
                extra[name] = self._send(array[steps])
        return ReplayStepInputs(
            self._task_inputs(plan, samples),
            tuple(self._replay_inputs(plan, d, replayed) for d in draws),
            extra,
            lookups,
        )

    def _task_inputs(self, plan: PlannedEpoch, samples: slice) -> TaskInputs:
        replay = plan.replay
        images = self.pool.gather(torch.from_numpy(replay.rows[samples]))
        return TaskInputs(
            views=tuple(self.augment_task(images, draws[samples]) for draws in plan.task_draws),
            y=self._send(self.labels[replay.rows[samples]]),
            slots=self._send(replay.targets[samples]),
            offers={name: self._send(array[samples]) for name, array in plan.offers.items()},
            raw=images if self._selects_in_step(plan) else None,
        )

    def _replay_inputs(self, plan: PlannedEpoch, d: int, samples: slice) -> ReplayInputs:
        """Inputs of the replayed samples of draw `d`."""
        replay, slots = plan.replay, self._send(plan.replay.slots[d][samples])
        if self._selects_in_step(plan):  # the slots' contents are known only in the step
            return ReplayInputs(slots, draws=tuple(self._send_draws(draws[samples]) for draws in plan.replay_draws[d]))
        images = self._replayed_images(replay.origin[d][samples])
        return ReplayInputs(
            slots,
            views=tuple(self.augment_memory(images, draws[samples]) for draws in plan.replay_draws[d]),
            y=self._send(replay.labels[d][samples]),
            weights=self._send(replay.weights[d][samples]) if self.memory.weighted else None,
            widths=self._send(replay.widths[d][samples]) if self.ragged else None,
        )

    def _selects_in_step(self, plan: PlannedEpoch) -> bool:
        """Whether the memory policy reads and writes slots within the step."""
        return self.memory.selector is not None and bool(plan.offers)

    def _look_up(self, rows: np.ndarray) -> LabeledImages:
        """Raw images and labels of the task's `rows` `[steps, k]`."""
        images = self.pool.gather(torch.from_numpy(rows.reshape(-1))).unflatten(0, rows.shape)
        return LabeledImages(images, self._send(self.labels[rows]))

    def _replayed_images(self, origin: np.ndarray) -> Tensor:
        """Images of replayed samples, from the memory or, if this epoch wrote them, from the task."""
        size = self.memory.size
        images = self.memory.gather(torch.from_numpy(np.where(origin < size, origin, size)))
        written = np.flatnonzero(origin >= size)
        if written.size:
            rows = self.pool.gather(torch.from_numpy(origin[written] - size))
            images.index_copy_(0, self._send(written), rows)
        return images

    def _send(self, array: np.ndarray) -> Tensor:
        return self.engine.send(torch.from_numpy(array))

    def _send_draws(self, draws: Draws) -> Draws:
        """Move draws to the device, unless there is an AutoAugment policy: its operations are sorted on the host."""
        if self.augment_memory.policy:
            return draws
        return Draws(*(self.engine.send(t) for t in (draws.shift, draws.flip, draws.ops, draws.levels)))


def _samples(sizes: np.ndarray, steps: slice) -> slice:
    """The samples of some steps, if step k has `sizes[k]` samples."""
    return slice(int(sizes[: steps.start].sum()), int(sizes[: steps.stop].sum()))


def _by_step(sizes: np.ndarray, steps: slice) -> Callable[[Tensor], Tensor]:
    """A function that selects the samples of some steps of equal size, as `[steps, samples, ...]`."""
    samples, shape = _samples(sizes, steps), (steps.stop - steps.start, int(sizes[steps.start]))
    return lambda tensor: tensor[samples].unflatten(0, shape)


def _concatenate(parts: list[StepInputs]) -> StepInputs:
    return parts[0] if len(parts) == 1 else {name: torch.cat([p[name] for p in parts]) for name in parts[0]}


def phase_data(phase: Phase, specialist: Specialist, past: Sequence[LabeledSource]) -> LabeledSource:
    """The images and labels that a phase iterates over.

    Args:
        phase: The phase.
        specialist: The specialist, with the current context.
        past: Images and labels of the previous tasks, for a phase over all tasks.
    """
    context = specialist.context
    task: LabeledSource = (context.pool, context.labels)
    memory: LabeledSource = (context.memory, context.memory.labels.copy())
    choices = {"task": [task], "memory": [memory], "both": [task, memory], "all": [*past, task]}
    parts = [(source, labels) for source, labels in choices[phase.data] if len(labels)]
    if len(parts) == 1:
        return parts[0]
    return ConcatImageSource([(source, len(labels)) for source, labels in parts]), np.concatenate(
        [labels for _, labels in parts]
    )
