"""Experience replay (Riemer et al., 2019). ITL uses this loss with a memory that is frozen during the task."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from itl.specialists.base import Batch, Specialist, concat
from itl.specialists.losses import cross_entropy, normalize_weights


class ER(Specialist):
    """Cross-entropy over the concatenated task and replay batches: one forward pass, so batch norm mixes them."""

    name = "er"
    summary = "experience replay from a reservoir"
    reference = (
        "Riemer et al.: Learning to Learn without Forgetting by Maximizing Transfer and Minimizing Interference, "
        "ICLR 2019"
    )
    defaults = {"memory.policy": "reservoir", "specialist.lr": 0.1}
    stream_defaults = {
        ("seq-tinyimagenet", 200): {"specialist.epochs": 100, "specialist.lr": 0.1},
        ("seq-tinyimagenet", 500): {"specialist.epochs": 100, "specialist.lr": 0.03},
        ("seq-tinyimagenet", 5120): {"specialist.epochs": 100, "specialist.lr": 0.1},
    }

    def loss(self, net: nn.Module, batch: Batch, replay_batches: tuple[Batch, ...]) -> Tensor:
        """CE over S(D_t) ∪ S(B)."""
        batches = (batch, *replay_batches)
        logits = net(concat(*(b.x for b in batches)))
        for b, outputs in zip(batches, logits.detach().split([len(b.y) for b in batches]), strict=True):
            b.outputs = outputs
        weights = None
        if any(b.weights is not None for b in replay_batches):
            replayed = (normalize_weights(b.weights) for b in replay_batches)
            weights = concat(torch.ones_like(batch.y, dtype=torch.float32), *(w for w in replayed if w is not None))
        return cross_entropy(logits, concat(*(b.y for b in batches)), self.settings.reduction, weights)
