"""The part of a step that belongs to a live memory: the replayed views before it, the writes after it."""

from __future__ import annotations

import torch
from torch import Tensor

from itl.augment import Augment, Draws
from itl.engine.stage import StepInputs
from itl.errors import UserError
from itl.memory import Memory
from itl.memory.online_selection import OfferedBatch, OnlineSelector, ReplayedBatch
from itl.specialists.base import Batch

DRAWS = ("shift", "flip", "ops", "levels")


def numbered(base: str, view: int) -> str:
    """The name of an input's further views."""
    return base if view == 0 else f"{base}.{view}"


def under(batch: StepInputs, prefix: str) -> StepInputs:
    """The inputs whose names begin with `prefix`, without it."""
    return {name.removeprefix(prefix): t for name, t in batch.items() if name.startswith(prefix)}


def to_store(now: Batch) -> Tensor:
    """The logits a memory stores with the task's batch `[n, classes]`: the method's own, else what the network said."""
    logits = now.said if now.logits is None else now.logits
    if logits is None:
        raise UserError(
            "memory.logits=true stores what the specialist says in a step, and the specialist leaves nothing; "
            "set memory.policy=stratified"
        )
    return logits.detach().float()


class OnlineSelectionStep:
    """A live memory in the step: `task` and `width` describe what is written, `views` of each image are replayed."""

    def __init__(
        self, memory: Memory, live: OnlineSelector, augment: Augment, task: int, width: int, views: int
    ) -> None:
        self.memory, self.live, self.augment = memory, live, augment
        self.task, self.width, self.views = task, width, views

    def filled_in(self, batch: StepInputs, draws: int, ragged: bool) -> StepInputs:
        """The same batch with views, labels and widths of the replayed slots, as they are now."""
        out = dict(batch)
        for d in range(draws):
            if f"{d}.slot" not in batch:
                continue
            slots = batch[f"{d}.slot"]
            images = self.memory.pixels.index_select(0, slots)
            for v in range(self.views):
                drawn = Draws(*(batch[numbered(f"{d}.{part}", v)] for part in DRAWS))
                out[numbered(f"{d}.x", v)] = self.augment(images, drawn)
            # A step tried before it is captured may replay slots that those before it have yet to fill: label -1.
            out[f"{d}.y"] = self.live.slot_fields["label"].index_select(0, slots).clamp(min=0)
            if ragged:
                out[f"{d}.width"] = self.live.slot_fields["width"].index_select(0, slots)
        return out

    @torch.no_grad()
    def take(self, batch: StepInputs, now: Batch, pasts: tuple[Batch, ...]) -> None:
        """Choose slots for the batch's samples and write them there: image, description, logits."""
        offer = under(batch, "offer.")
        targets = self.live.choose_slots(
            OfferedBatch(now.y, now.said, offer, now.extra),
            [ReplayedBatch(past.slots, past.y, past.said) for past in pasts if past.slots is not None],
        )
        row = offer["row"]
        known = {"label": now.y, "row": row, "written": offer["written"]}
        known |= {name: torch.full_like(row, value) for name, value in (("task", self.task), ("width", self.width))}
        targets = self.live.record_writes(targets, known)
        self.memory.pixels.index_copy_(0, targets, batch["raw"])
        self.memory.clear_edits(targets)
        if self.memory.logits is not None:
            self.memory.logits.index_copy_(0, targets, to_store(now))
