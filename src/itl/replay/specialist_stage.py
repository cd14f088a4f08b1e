"""The training step of a specialist, as a stage that the engine runs."""

from __future__ import annotations

import torch
from torch import Tensor

from itl.engine.stage import Stage, StepInputs
from itl.replay.online_memory import OnlineSelectionStep, logits_to_store
from itl.replay.round_planner import ReplayRoundPlanner
from itl.replay.step_inputs import ReplayInputs, ReplayStepInputs, TaskInputs, unflatten
from itl.specialists.base import Batch


class SpecialistStep:
    """One step of a specialist's phase: the loss before the optimizer's update, hooks and memory writes after it."""

    def __init__(self, planner: ReplayRoundPlanner) -> None:
        self.specialist, self.phase, self.memory = planner.specialist, planner.phase, planner.memory
        self.context, self.ragged = planner.specialist.context, planner.ragged
        # Computed here because a captured step must not create them.
        _ = (self.context.seen_mask, self.context.task_mask, self.context.past_columns)
        self.online: OnlineSelectionStep | None = None
        if self.memory.selector is not None and self.phase.replays:
            self.online = OnlineSelectionStep(
                self.memory, self.memory.selector, planner.augment_memory, self.context.task, planner.width
            )
        self._last: tuple[TaskInputs, Batch, tuple[Batch, ...]] | None = None  # from `loss`, for `after_step`

    def loss(self, flat: StepInputs) -> Tensor:
        """The phase's loss; also stores logits in memory and offers samples to its candidates."""
        inputs = unflatten(flat)
        batch = self._task_batch(inputs)
        replay_batches = tuple(self._replay_batch(replay) for replay in inputs.replay)
        loss = self.phase.loss(self.context.net, batch, replay_batches)
        self._store_logits(batch, replay_batches)
        if self.memory.candidates is not None and self.phase.replays:
            logits = batch.outputs if batch.stored_logits is None else batch.stored_logits
            self.memory.candidates.observe(logits, {**inputs.task.offers, "y": batch.y})
        self._last = (inputs.task, batch, replay_batches)
        return loss

    @torch.no_grad()
    def after_step(self) -> None:
        """Run the specialist's hook and the memory's online selection, after the optimizer's update."""
        assert self._last is not None
        (inputs, batch, replay_batches), self._last = self._last, None
        self.specialist.after_step(self.context.net, batch, replay_batches)
        if self.online is not None:
            self.online.write(inputs, batch, replay_batches)

    def mutable_tensors(self) -> list[Tensor]:
        """Everything a step changes in place besides the parameters."""
        tensors = [*self.context.net.buffers(), *self.specialist.mutable_tensors()]
        if self.memory.logits is not None:
            tensors.append(self.memory.logits)
        if self.memory.candidates is not None:
            tensors += self.memory.candidates.tensors().values()
        if self.online is not None:
            tensors += [self.memory.pixels, *self.online.selector.tensors()]
        return tensors

    def _task_batch(self, inputs: ReplayStepInputs) -> Batch:
        x, *extra_views = (self.context.normalize(view) for view in inputs.task.views)
        return Batch(
            x,
            inputs.task.y,
            slots=inputs.task.slots,
            extra_views=tuple(extra_views),
            extra=dict(inputs.extra),
            lookups=inputs.lookups,
            raw=inputs.task.raw,
        )

    def _replay_batch(self, inputs: ReplayInputs) -> Batch:
        if self.online is not None:
            inputs = self.online.fill_in(inputs, self.ragged)
        assert inputs.y is not None
        x, *extra_views = (self.context.normalize(view) for view in inputs.views)
        logits = self.memory.logits
        return Batch(
            x,
            inputs.y,
            stored_logits=None if logits is None else logits.index_select(0, inputs.slots),
            logit_widths=inputs.widths,
            slots=inputs.slots,
            weights=inputs.weights,
            extra_views=tuple(extra_views),
        )

    def _store_logits(self, batch: Batch, replay_batches: tuple[Batch, ...]) -> None:
        """Store updated logits of replayed samples, and those of the task's samples where their slots are planned."""
        if self.memory.logits is None:
            return
        for replay in replay_batches:
            if replay.updated_logits is not None and replay.slots is not None:
                self.memory.logits.index_copy_(0, replay.slots, replay.updated_logits.float())
        if self.phase.replays and self.memory.policy.plans_writes and self.online is None:
            assert batch.slots is not None
            self.memory.logits.index_copy_(0, batch.slots, logits_to_store(batch))


def specialist_stage(planner: ReplayRoundPlanner) -> Stage:
    """The stage that trains on the planned epochs with the loss of the specialist's phase."""
    specialist, phase = planner.specialist, planner.phase
    step = SpecialistStep(planner)
    net = specialist.context.net
    net.train(phase.training)
    return Stage(
        phase.name,
        phase.parameters,
        phase.optimizer,
        planner,
        step.loss,
        step.mutable_tensors(),
        net=net,
        capturable=specialist.capturable and (step.online is None or step.online.augment.policy is None),
        transform_gradients=specialist.transform_gradients
        if phase.replays and specialist.transforms_gradients
        else None,
        after_step=step.after_step if phase.replays else None,
    )
