"""GSS-Greedy, gradient-based sample selection (Aljundi et al., 2019)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

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


class GradientSimilaritySelector(OnlineSelector):
    """Replaces an image by a sample whose gradient is less similar to the gradients of other images in memory.

    The specialist `gss` provides in `OfferedBatch.extra` the similarity of the batch's gradient, `batch_score` `[n]`
    (equal for all samples), and of each sample's gradient, `sample_score` `[n]`: the largest cosine with the gradients
    of some images in memory, plus 1.
    """

    def draw_inputs(self, slots: Slots, targets: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Once the memory is full, every sample is a candidate."""
        out = super().draw_inputs(slots, targets, rng)
        out["slot"] = np.where(targets < slots.size, targets, CHOOSE_ON_DEVICE)
        return out

    @torch.no_grad()
    def choose_slots(self, batch: OfferedBatch, replayed: Sequence[ReplayedBatch]) -> Tensor:
        """Each sample of a batch with a score below 1 challenges a slot drawn in proportion to the stored scores s.

        It replaces the image there with probability s / (s + its own score).
        """
        slots = batch.inputs["slot"]
        targets = torch.full_like(slots, self.size)
        for sample, may_choose in self.offers(slots):
            slot, score = slots[sample], batch.extra["batch_score"][sample]
            if may_choose:
                sample_score, stored = batch.extra["sample_score"][sample], self.scores[: self.size]
                is_planned = slot != CHOOSE_ON_DEVICE
                challenged = sample_slot(stored / stored.sum(), batch.inputs["slot_draw"][sample])
                s = stored.index_select(0, challenged)
                replaces = (score < 1) & (batch.inputs["accept_draw"][sample] < s / (s + sample_score))
                slot = torch.where(is_planned, slot, torch.where(replaces, challenged, self.size))
                score = torch.where(is_planned, score, sample_score)
            targets[sample] = slot
            self.scores.index_copy_(0, slot, score.to(self.scores.dtype))
        return targets


class GSSGreedy(MemoryPolicy):
    """Images whose gradients point in different directions. Only the specialist `gss` provides the scores."""

    selector_class = GradientSimilaritySelector

    def plan_writes(self, slots: Slots, labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Fill the free slots; the selector places the other samples."""
        return fill_free_slots(slots, labels)
