"""Experience replay (Riemer et al., 2019). ITL's own specialist is this loss over a memory frozen during the task."""

from __future__ import annotations

from torch import Tensor, nn

from itl.specialists.base import Specialist, View, join
from itl.specialists.losses import cross_entropy


class ER(Specialist):
    """Cross-entropy over a task batch joined with batches from memory: one forward, batch norm sees the mixture."""

    name = "er"

    def loss(self, net: nn.Module, now: View, pasts: tuple[View, ...]) -> Tensor:
        """CE over S(D_t) ∪ S(B)."""
        x = join(now.x, *(past.x for past in pasts))
        y = join(now.y, *(past.y for past in pasts))
        return cross_entropy(net(x), y, self.settings.reduction)
