"""Experience replay (Riemer et al., 2019). ITL's own specialist is this loss over a memory frozen during the task."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from itl.specialists.base import Batch, Specialist, join
from itl.specialists.losses import cross_entropy, shares


class ER(Specialist):
    """Cross-entropy over a task batch joined with batches from memory: one forward, batch norm sees the mixture."""

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

    def loss(self, net: nn.Module, now: Batch, pasts: tuple[Batch, ...]) -> Tensor:
        """CE over S(D_t) ∪ S(B)."""
        x = join(now.x, *(past.x for past in pasts))
        y = join(now.y, *(past.y for past in pasts))
        logits = net(x)
        now.said, *said = logits.detach().split([len(now.y), *(len(past.y) for past in pasts)])
        now.logits = now.said
        for past, those in zip(pasts, said, strict=True):
            past.said = those
        weights = None
        if any(past.weights is not None for past in pasts):
            each = (shares(past.weights) for past in pasts)
            weights = join(torch.ones_like(now.y, dtype=torch.float32), *(w for w in each if w is not None))
        return cross_entropy(logits, y, self.settings.reduction, weights)
