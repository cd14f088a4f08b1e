"""Loss-aware balanced reservoir sampling (Buzzega et al., 2020)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from itl.errors import UserError
from itl.memory.online_selection import (
    CHOOSE_ON_DEVICE,
    OfferedBatch,
    OnlineSelector,
    ReplayedBatch,
    fill_free_slots,
    sample_slot,
)
from itl.memory.policies.base import MemoryPolicy
from itl.memory.slots import Slots


class LossAwareSelector(OnlineSelector):
    """Plain reservoir sampling accepts a sample; its slot is drawn by `eviction_probabilities`.

    Scores are losses, updated whenever an image is replayed.
    """

    def draw_inputs(self, slots: Slots, targets: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Decide by reservoir sampling which samples are accepted."""
        out = super().draw_inputs(slots, targets, rng)
        before = slots.seen + np.arange(len(targets))
        accepted = np.floor(out["accept_draw"] * (before + 1)) < slots.size
        out["slot"] = np.where(targets < slots.size, targets, np.where(accepted, CHOOSE_ON_DEVICE, slots.size))
        return out

    @torch.no_grad()
    def choose_slots(self, batch: OfferedBatch, replayed: Sequence[ReplayedBatch]) -> Tensor:
        """Place the samples one after another, each by the scores that the samples before it left."""
        if batch.logits is None:
            raise UserError(
                "a loss-aware memory needs the specialist's logits, but the specialist does not provide them; "
                "set memory.policy=reservoir"
            )
        for past in replayed:
            if past.logits is not None:
                self.scores.index_copy_(0, past.slots, _losses(past.logits, past.labels))
        losses, slots = _losses(batch.logits, batch.labels), batch.inputs["slot"]
        targets = torch.full_like(slots, self.size)
        for sample, may_choose in self.offers(slots):
            slot = slots[sample]
            if may_choose:
                probabilities = eviction_probabilities(self.scores[: self.size], self.slot_fields["label"][: self.size])
                chosen = sample_slot(probabilities, batch.inputs["slot_draw"][sample])
                slot = torch.where(slot == CHOOSE_ON_DEVICE, chosen, slot)
            targets[sample] = slot
            self.scores.index_copy_(0, slot, losses[sample])
            self.slot_fields["label"].index_copy_(0, slot, batch.labels[sample])
        return targets


class LossAware(MemoryPolicy):
    """A reservoir that evicts images with a low loss and a common class."""

    selector_class = LossAwareSelector

    def plan_writes(self, slots: Slots, labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Fill the free slots; the selector places the other samples."""
        return fill_free_slots(slots, labels)


def eviction_probabilities(losses: Tensor, labels: Tensor) -> Tensor:
    """Probability of each slot to be overwritten `[size]`, from the losses `[size]` and labels `[size]` of its images.

    Proportional to half the negative loss, scaled, plus half the number of images of the same class, shifted to start
    at 0.
    """
    class_size = (labels[:, None] == labels[None, :]).sum(1).to(losses.dtype)
    importance = -losses
    score = 0.5 * importance / (importance.abs().mean() * class_size.mean()).clamp(min=1e-12) + 0.5 * class_size
    score = score - score.min()
    score = torch.where(score.max() > 0, score / score.max().clamp(min=1e-30), torch.ones_like(score))
    return score / score.sum()


def _losses(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.double(), labels, reduction="none")
