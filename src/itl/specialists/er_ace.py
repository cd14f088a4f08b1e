"""ER-ACE: experience replay with asymmetric cross-entropy (Caccia et al., 2022)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from itl.nets import forward_each
from itl.specialists.base import Batch, Specialist
from itl.specialists.losses import among, cross_entropy, shares


class ERACE(Specialist):
    """CE of the task's batch among its own classes (and those not taught yet) + CE of the memory's among all.

    New classes cannot push the old ones' outputs down; only replay tells them apart. From the second task on: before,
    there is nothing to protect, and plain cross-entropy is taken, without replay. The classifier is linear, as the
    benchmark's, where the paper's own code normalises features and weights.
    """

    name = "er-ace"
    summary = "replay with asymmetric cross-entropy: new classes do not push old ones down"
    reference = (
        "Caccia, Aljundi, Asadi, Tuytelaars, Pineau, Belilovsky: New Insights on Reducing Abrupt Representation Change "
        "in Online Continual Learning, ICLR 2022"
    )
    defaults = {"memory.policy": "reservoir", "specialist.lr": 0.03}
    note = "the learning rate is the benchmark's for seq-cifar100; the paper trains for one epoch"

    def loss(self, net: nn.Module, now: Batch, pasts: tuple[Batch, ...]) -> Tensor:
        """CE over C_batch ∪ C_unseen + CE over all classes."""
        how, context = self.settings.reduction, self.context
        if not context.past:
            pasts = ()
        logits, *replayed = forward_each(net, now.x, *(past.x for past in pasts))
        now.said = logits.detach()
        if not context.past:
            return cross_entropy(logits, now.y, how)
        present = torch.zeros(logits.shape[1], dtype=torch.bool, device=logits.device).index_fill(0, now.y, True)
        loss = cross_entropy(among(logits, present | ~context.taught), now.y, how)
        for past, again in zip(pasts, replayed, strict=True):
            loss = loss + cross_entropy(again, past.y, how, shares(past.weights))
        return loss
