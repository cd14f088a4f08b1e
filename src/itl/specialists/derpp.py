"""DER++: dark experience replay with labels (Buzzega et al., 2020). ITL-L's specialist."""

from __future__ import annotations

from torch import Tensor, nn

from itl.nets import forward_each
from itl.specialists.base import Batch, Specialist, WeightAverageOptions
from itl.specialists.losses import cross_entropy, normalize_weights, squared_error


class DERpp(Specialist):
    """CE(task) + α ‖p(x) − z‖² on one memory draw + β CE on another, each with its own forward pass.

    With `draws=1` both replay terms share one batch, as the ITL paper's appendix writes it. The stored logits z of a
    sample are those of its augmented image, in training mode, at the step that offers it to the reservoir.
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
    Options = WeightAverageOptions
    stores_logits = True
    forward_batches = backward_batches = 3

    def loss(self, net: nn.Module, batch: Batch, replay_batches: tuple[Batch, ...]) -> Tensor:
        """The three terms; only the first while the memory is empty."""
        s = self.settings
        logits, *replay_logits = forward_each(net, batch.x, *(replay.x for replay in replay_batches))
        batch.outputs = logits.detach()
        loss = cross_entropy(logits, batch.y, s.reduction)
        if not replay_batches:
            return loss
        first, last = replay_batches[0], replay_batches[-1]
        assert first.stored_logits is not None
        first.outputs, last.outputs = replay_logits[0].detach(), replay_logits[-1].detach()
        weights = normalize_weights(first.weights)
        error = squared_error(replay_logits[0], first.stored_logits, s.reduction, first.logit_widths, weights)
        loss = loss + s.alpha * error
        return loss + s.beta * cross_entropy(replay_logits[-1], last.y, s.reduction, normalize_weights(last.weights))
