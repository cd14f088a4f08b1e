"""Plain fine-tuning: the lower bound."""

from __future__ import annotations

from torch import Tensor, nn

from itl.specialists.base import Batch, Specialist
from itl.specialists.losses import cross_entropy


class SGD(Specialist):
    """Cross-entropy on the task alone."""

    name = "sgd"
    summary = "fine-tuning on each task, no memory: the lower bound"
    reference = (
        "Buzzega, Boschini, Porrello, Abati, Calderara: Dark Experience for General Continual Learning, NeurIPS 2020"
    )
    defaults = {"memory.policy": "none", "specialist.lr": 0.1}
    stream_defaults = {("seq-tinyimagenet", None): {"specialist.lr": 0.03, "specialist.epochs": 100}}
    needs_memory = False
    num_replay_batches = 0  # there is no replay
    forward_batches = backward_batches = 1

    def loss(self, net: nn.Module, batch: Batch, replay_batches: tuple[Batch, ...]) -> Tensor:
        """CE(p(x), y)."""
        logits = net(batch.x)
        batch.outputs = logits.detach()
        return cross_entropy(logits, batch.y, self.settings.reduction)
