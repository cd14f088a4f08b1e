"""Experience replay with one term per batch: ITL's specialist as the paper's appendix writes it."""

from __future__ import annotations

from torch import Tensor, nn

from itl.nets import forward_each
from itl.specialists.base import Batch, Specialist, WeightAverageOptions
from itl.specialists.losses import cross_entropy, normalize_weights


class ERSeparate(Specialist):
    """CE over S(D_t) + CE over S(B), with separate forward passes, so batch norm never mixes task and memory.

    The benchmark's `er` concatenates the batches, so that one set of batch statistics covers the task's and the
    memory's images; the paper leaves open which of the two it does. The sum here weighs twice as much as `er`'s mean.
    """

    name = "er-separate"
    Options = WeightAverageOptions

    def loss(self, net: nn.Module, batch: Batch, replay_batches: tuple[Batch, ...]) -> Tensor:
        """The terms, each with its own reduction."""
        reduction = self.settings.reduction
        logits, *replay_logits = forward_each(net, batch.x, *(replay.x for replay in replay_batches))
        batch.outputs = logits.detach()
        loss = cross_entropy(logits, batch.y, reduction)
        for replay, outputs in zip(replay_batches, replay_logits, strict=True):
            replay.outputs = outputs.detach()
            loss = loss + cross_entropy(outputs, replay.y, reduction, normalize_weights(replay.weights))
        return loss
