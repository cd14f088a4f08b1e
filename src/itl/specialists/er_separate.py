"""ITL's specialist as the paper's appendix writes it: experience replay with a term for each batch."""

from __future__ import annotations

from torch import Tensor, nn

from itl.nets import forward_each
from itl.specialists.base import Batch
from itl.specialists.losses import cross_entropy, shares
from itl.specialists.weight_average import Averaged


class ERApart(Averaged):
    """CE over S(D_t) + CE over S(B), each batch in a forward of its own: batch norm never sees the mixture.

    The benchmark's `er` joins the batches, which shows the network the task's images and the memory's through one
    set of statistics; the paper leaves open which of the two it does. Here the terms also weigh twice as much.
    """

    name = "er-apart"

    def loss(self, net: nn.Module, now: Batch, pasts: tuple[Batch, ...]) -> Tensor:
        """The terms, each with its own reduction."""
        how = self.settings.reduction
        logits, *replayed = forward_each(net, now.x, *(past.x for past in pasts))
        now.said = now.logits = logits.detach()
        loss = cross_entropy(logits, now.y, how)
        for past, those in zip(pasts, replayed, strict=True):
            past.said = those.detach()
            loss = loss + cross_entropy(those, past.y, how, shares(past.weights))
        return loss
