"""ER-ACE: experience replay with asymmetric cross-entropy (Caccia et al., 2022)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from itl.nets import forward_each
from itl.specialists.base import Batch, Specialist
from itl.specialists.losses import cross_entropy, mask_logits, normalize_weights


class ERACE(Specialist):
    """CE of the task batch over its own and the unseen classes + CE of the replay batch over all classes.

    New classes cannot push down the outputs of old classes; only replay contrasts the two. On the first task there are
    no old classes, and the loss is plain cross-entropy without replay. This follows the benchmark (mammoth) before its
    commit 98e84c5 of December 2024: the classifier is linear. Since then the benchmark's default is the classifier of
    the authors' code, which normalizes features and weights.
    """

    name = "er-ace"
    summary = "replay with asymmetric cross-entropy: new classes do not push old ones down"
    reference = (
        "Caccia, Aljundi, Asadi, Tuytelaars, Pineau, Belilovsky: New Insights on Reducing Abrupt Representation Change "
        "in Online Continual Learning, ICLR 2022"
    )
    defaults = {"memory.policy": "reservoir", "specialist.lr": 0.03}
    note = "the learning rate is the benchmark's for seq-cifar100; the paper trains for one epoch"

    def loss(self, net: nn.Module, batch: Batch, replay_batches: tuple[Batch, ...]) -> Tensor:
        """CE over C_batch ∪ C_unseen + CE over all classes."""
        reduction, context = self.settings.reduction, self.context
        if not context.past_classes:
            replay_batches = ()
        logits, *replay_logits = forward_each(net, batch.x, *(replay.x for replay in replay_batches))
        batch.outputs = logits.detach()
        if not context.past_classes:
            return cross_entropy(logits, batch.y, reduction)
        in_batch = torch.zeros(logits.shape[1], dtype=torch.bool, device=logits.device).index_fill(0, batch.y, True)
        loss = cross_entropy(mask_logits(logits, in_batch | ~context.seen_mask), batch.y, reduction)
        for replay, outputs in zip(replay_batches, replay_logits, strict=True):
            loss = loss + cross_entropy(outputs, replay.y, reduction, normalize_weights(replay.weights))
        return loss
