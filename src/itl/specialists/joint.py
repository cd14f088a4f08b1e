"""Joint training: every task so far at once. No continual learner, but what one would like to reach."""

from __future__ import annotations

from torch import Tensor, nn

from itl.specialists.base import Specialist, View
from itl.specialists.losses import cross_entropy


class Joint(Specialist):
    """Cross-entropy over the shuffled data of all tasks so far, from a newly drawn network.

    The benchmark trains it once, when all data is there; here it is trained anew with each task, so that it has a score
    after every one. The last is the benchmark's.
    """

    name = "joint"
    needs_memory = False
    over = "all"
    restarts = True
    forwards = backwards = 1

    @property
    def draws(self) -> int:
        """It looks at no memory."""
        return 0

    def loss(self, net: nn.Module, now: View, pasts: tuple[View, ...]) -> Tensor:
        """CE over S(D_1 ∪ … ∪ D_t)."""
        return cross_entropy(net(now.x), now.y, self.settings.reduction)
