"""GCR: gradient coreset replay (Tiwari et al., 2022)."""

from __future__ import annotations

from torch import Tensor, nn

from itl.nets import forwards
from itl.specialists.base import View
from itl.specialists.derpp import DERpp
from itl.specialists.losses import cross_entropy, shares, squared_error


class GCR(DERpp):
    """DER++ whose replayed samples count by their weights in a coreset of gradients.

    The memory (`memory.policy=gcr`, `memory/gcr.py`) is frozen during a task and chosen at its end, of what it held
    and of candidates gathered in the steps. The authors' code replays the present task's candidates as well, and has a
    supervised contrastive term, which is not here.
    """

    name = "gcr"
    needs_policy = "gcr"

    def loss(self, net: nn.Module, now: View, pasts: tuple[View, ...]) -> Tensor:
        """CE(now) + α Σ w ‖p(x) − z‖² / Σ w on one memory draw + β Σ w CE / Σ w on another."""
        how, alpha, beta = self.settings.reduction, self.settings.alpha, self.settings.beta
        logits, *replayed = forwards(net, now.x, *(past.x for past in pasts))
        now.said = now.logits = logits.detach()
        loss = cross_entropy(logits, now.y, how)
        if not pasts:
            return loss
        first, last = pasts[0], pasts[-1]
        assert first.logits is not None
        loss = loss + alpha * squared_error(replayed[0], first.logits, how, first.widths, shares(first.weights))
        return loss + beta * cross_entropy(replayed[-1], last.y, how, shares(last.weights))
