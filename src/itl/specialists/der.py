"""DER: dark experience replay (Buzzega et al., 2020)."""

from __future__ import annotations

from torch import Tensor, nn

from itl.nets import forward_each
from itl.specialists.base import Batch, Specialist
from itl.specialists.losses import cross_entropy, shares, squared_error


class DER(Specialist):
    """CE(now) + α ‖p(x) − z‖² on a memory batch, z being the logits stored with it; no labels are replayed."""

    name = "der"
    summary = "dark experience replay: stored logits from a reservoir"
    reference = (
        "Buzzega, Boschini, Porrello, Abati, Calderara: Dark Experience for General Continual Learning, NeurIPS 2020"
    )
    defaults = {"memory.policy": "reservoir", "specialist.lr": 0.03, "specialist.alpha": 0.3}
    stream_defaults = {("seq-tinyimagenet", None): {"specialist.alpha": 0.1, "specialist.epochs": 100}}
    stores_logits = True

    def loss(self, net: nn.Module, now: Batch, pasts: tuple[Batch, ...]) -> Tensor:
        """Both terms, each with its own forward; on an empty memory only the first."""
        how = self.settings.reduction
        logits, *replayed = forward_each(net, now.x, *(past.x for past in pasts))
        now.said = now.logits = logits.detach()
        loss = cross_entropy(logits, now.y, how)
        for past, again in zip(pasts, replayed, strict=True):
            assert past.logits is not None
            error = squared_error(again, past.logits, how, past.widths, shares(past.weights))
            loss = loss + self.settings.alpha * error
        return loss
