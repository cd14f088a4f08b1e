"""DER++: dark experience replay with labels (Buzzega et al., 2020). ITL-L's specialist."""

from __future__ import annotations

from torch import Tensor, nn

from itl.nets import forward_each
from itl.specialists.base import Batch
from itl.specialists.losses import cross_entropy, shares, squared_error
from itl.specialists.weight_average import Averaged


class DERpp(Averaged):
    """CE(now) + α ‖p(x) − z‖² on one memory draw + β CE on another, each with its own forward.

    With `draws=1` both terms share one memory batch, as the ITL paper's appendix writes it. The logits stored with a
    sample are those of its augmented, train-mode view at the step that offers it to the reservoir.
    """

    name = "derpp"
    summary = "dark experience replay: stored logits and labels from a reservoir"
    reference = (
        "Buzzega, Boschini, Porrello, Abati, Calderara: Dark Experience for General Continual Learning, NeurIPS 2020"
    )
    defaults = {
        "memory.policy": "reservoir",
        "memory.logits": True,
        "specialist.draws": 2,
        "specialist.lr": 0.03,
        "specialist.alpha": 0.1,
        "specialist.beta": 0.5,
    }
    stream_defaults = {
        ("seq-cifar10", 200): {"specialist.alpha": 0.1, "specialist.beta": 0.5},
        ("seq-cifar10", 500): {"specialist.alpha": 0.2, "specialist.beta": 0.5},
        ("seq-cifar10", 5120): {"specialist.alpha": 0.1, "specialist.beta": 1.0},
        ("seq-tinyimagenet", 200): {"specialist.alpha": 0.1, "specialist.beta": 1.0, "specialist.epochs": 100},
        ("seq-tinyimagenet", 500): {"specialist.alpha": 0.2, "specialist.beta": 0.5, "specialist.epochs": 100},
        ("seq-tinyimagenet", 5120): {"specialist.alpha": 0.1, "specialist.beta": 0.5, "specialist.epochs": 100},
    }
    stores_logits = True
    forwards = backwards = 3

    def loss(self, net: nn.Module, now: Batch, pasts: tuple[Batch, ...]) -> Tensor:
        """The three terms; on an empty memory only the first."""
        how, alpha, beta = self.settings.reduction, self.settings.alpha, self.settings.beta
        logits, *replayed = forward_each(net, now.x, *(past.x for past in pasts))
        now.said = now.logits = logits.detach()
        loss = cross_entropy(logits, now.y, how)
        if not pasts:
            return loss
        first, last = pasts[0], pasts[-1]
        assert first.logits is not None
        first.said, last.said = replayed[0].detach(), replayed[-1].detach()
        loss = loss + alpha * squared_error(replayed[0], first.logits, how, first.widths, shares(first.weights))
        return loss + beta * cross_entropy(replayed[-1], last.y, how, shares(last.weights))
