"""DER: dark experience replay (Buzzega et al., 2020)."""

from __future__ import annotations

from torch import Tensor, nn

from itl.nets import forward_each
from itl.specialists.base import Batch, Specialist
from itl.specialists.losses import cross_entropy, normalize_weights, squared_error


class DER(Specialist):
    """CE(task) + α ‖p(x) − z‖² on a replay batch with stored logits z; labels are not replayed."""

    name = "der"
    summary = "dark experience replay: stored logits from a reservoir"
    reference = (
        "Buzzega, Boschini, Porrello, Abati, Calderara: Dark Experience for General Continual Learning, NeurIPS 2020"
    )
    defaults = {"memory.policy": "reservoir", "specialist.lr": 0.03, "specialist.alpha": 0.3}
    stream_defaults = {("seq-tinyimagenet", None): {"specialist.alpha": 0.1, "specialist.epochs": 100}}
    stores_logits = True

    def loss(self, net: nn.Module, batch: Batch, replay_batches: tuple[Batch, ...]) -> Tensor:
        """Both terms, each with its own forward pass; only the first while the memory is empty."""
        s = self.settings
        logits, *replay_logits = forward_each(net, batch.x, *(replay.x for replay in replay_batches))
        batch.outputs = logits.detach()
        loss = cross_entropy(logits, batch.y, s.reduction)
        for replay, outputs in zip(replay_batches, replay_logits, strict=True):
            assert replay.stored_logits is not None
            weights = normalize_weights(replay.weights)
            error = squared_error(outputs, replay.stored_logits, s.reduction, replay.logit_widths, weights)
            loss = loss + s.alpha * error
        return loss
