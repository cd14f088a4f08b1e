"""The part of a step that serves a memory policy with online selection: replayed images before it, writes after it."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from itl.augment import Augment
from itl.errors import UserError
from itl.memory import Memory
from itl.memory.online_selection import OfferedBatch, OnlineSelector, ReplayedBatch
from itl.replay.step_inputs import ReplayInputs, TaskInputs
from itl.specialists.base import Batch


def logits_to_store(batch: Batch) -> Tensor:
    """The logits `[n, classes]` that a memory stores with the task batch, in float32.

    Raises:
        UserError: If the specialist's loss did not set `batch.outputs`.
    """
    logits = batch.outputs if batch.stored_logits is None else batch.stored_logits
    if logits is None:
        raise UserError(
            "memory.logits=true stores the specialist's logits at each step, but this specialist's loss does not set "
            "batch.outputs; set memory.policy=stratified"
        )
    return logits.detach().float()


class OnlineSelectionStep:
    """Reads from and writes to a memory whose slots are selected within the step, on the device."""

    def __init__(self, memory: Memory, selector: OnlineSelector, augment: Augment, task: int, width: int) -> None:
        """`task` (its index) and `width` (the number of outputs) are stored with every sample written."""
        self.memory, self.selector, self.augment = memory, selector, augment
        self.task, self.width = task, width

    def fill_in(self, replay: ReplayInputs, with_widths: bool) -> ReplayInputs:
        """Add the augmented images, labels and (if `with_widths`) logit widths of the slots' current contents."""
        stored, slots = self.selector.slot_fields, replay.slots
        images = self.memory.pixels.index_select(0, slots)
        return replace(
            replay,
            views=tuple(self.augment(images, draws) for draws in replay.draws),
            # The trial run before a capture may replay slots that earlier steps have not filled yet: label -1.
            y=stored["label"].index_select(0, slots).clamp(min=0),
            widths=stored["width"].index_select(0, slots) if with_widths else None,
        )

    @torch.no_grad()
    def write(self, inputs: TaskInputs, batch: Batch, replay_batches: tuple[Batch, ...]) -> None:
        """Select slots for the batch's samples and write image, metadata and logits there."""
        targets = self.selector.choose_slots(
            OfferedBatch(batch.y, batch.outputs, inputs.offers, batch.extra),
            [ReplayedBatch(b.slots, b.y, b.outputs) for b in replay_batches if b.slots is not None],
        )
        assert inputs.raw is not None
        row = inputs.offers["row"]
        fields = {"label": batch.y, "row": row, "written": inputs.offers["written"]}
        fields |= {name: torch.full_like(row, value) for name, value in (("task", self.task), ("width", self.width))}
        targets = self.selector.record_writes(targets, fields)
        self.memory.pixels.index_copy_(0, targets, inputs.raw)
        self.memory.clear_edits(targets)
        if self.memory.logits is not None:
            self.memory.logits.index_copy_(0, targets, logits_to_store(batch))
