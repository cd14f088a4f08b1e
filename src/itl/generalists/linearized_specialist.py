"""The reverse design of the paper's discussion: a linearized specialist and a fine-tuned generalist.

For every task, w is trained on the tangent plane at f_{t-1} over the task and the memory, and the projection along the
task turns the result into a network. The memory is updated, and the generalist fine-tunes all of that network on the
memory alone. The first task has no generalist to linearize, so it is trained as usual. The paper argues that this
design fails, because non-linear fine-tuning on a few images forgets and overfits.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from itl.generalists.learning import optimizer_config
from itl.generalists.tangent_model import TangentModel
from itl.nets import Net
from itl.settings import Settings
from itl.specialists import Batch, Phase, concat
from itl.specialists.er import ER
from itl.specialists.losses import cross_entropy, squared_error
from itl.specialists.model_copies import frozen_copy


def _float32_logits(model: TangentModel, w: dict[str, Tensor], x: Tensor) -> Tensor:
    """Logits of the tangent model, without bf16, whatever the specialist's precision is."""
    with torch.autocast(x.device.type, enabled=False):
        return model(w, x.float())


class TangentSpecialist(ER):
    """w_t = argmin CE(f + ∇f w; D_t ∪ B_{t-1}), then f' = argmin ‖f' − (f + ∇f w_t)‖² over D_t.

    The settings `specialist.epochs` and `specialist.batch` apply to the training of w, the `tangent` group to its
    optimizer, and the `projection` group to the projection.
    """

    name = "tangent"

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings.specialist)
        self.all = settings

    def on_task_start(self) -> None:
        """Linearize the current generalist; w = 0."""
        if not self.context.task:
            return
        self.model_copies["anchor"] = frozen_copy(self.context.net)
        self.w = {name: w.requires_grad_() for name, w in self.model().zero().items()}
        self.projected = torch.zeros((), dtype=torch.bool)

    def model(self) -> TangentModel:
        """The tangent model at the anchor."""
        return TangentModel(self.model_copies["anchor"], self.all.tangent.layers)

    def training_phase(self) -> Phase:
        """The training of w."""
        if not self.context.task:
            return super().training_phase()
        s = self.settings
        model = self.model()

        def loss(net: nn.Module, batch: Batch, replay_batches: tuple[Batch, ...]) -> Tensor:
            x, y = concat(batch.x, *(p.x for p in replay_batches)), concat(batch.y, *(p.y for p in replay_batches))
            return cross_entropy(_float32_logits(model, self.w, x), y, s.reduction)

        optimizer = optimizer_config(self.all.tangent)
        return Phase("specialist", "task", s.epochs, s.batch, optimizer, loss, dict(self.w), s.steps, training=False)

    def closing_phase(self) -> Phase | None:
        """The projection along the task."""
        if not self.context.task:
            return None
        p, model = self.all.projection, self.model()
        w = {name: t.detach() for name, t in self.w.items()}
        self.projected.fill_(True)

        def loss(net: nn.Module, batch: Batch, replay_batches: tuple[Batch, ...]) -> Tensor:
            with torch.no_grad():
                target = _float32_logits(model, w, batch.x)
            return squared_error(net(batch.x), target, p.reduction)

        parameters: dict[str, Tensor] = dict(self.context.net.named_parameters())
        training = p.batch_norm == "train"
        return Phase(
            "closing",
            "task",
            p.epochs,
            p.batch,
            optimizer_config(p),
            loss,
            parameters,
            p.steps,
            training=training,
            replays=False,
        )

    def evaluate_logits(self, net: Net, x: Tensor) -> Tensor:
        """Logits of the tangent model while w is trained, and of the network after the projection."""
        if "anchor" not in self.model_copies or bool(self.projected):
            return super().evaluate_logits(net, x)
        return _float32_logits(self.model(), self.w, x)

    def state_dict(self) -> dict[str, Tensor]:
        """Tensors to checkpoint: the anchor and w."""
        own = (
            {f"w.{name}": t.detach() for name, t in self.w.items()} | {"projected": self.projected}
            if self.model_copies
            else {}
        )
        return {**super().state_dict(), **own}

    def load_state_dict(self, state: dict[str, Tensor], net: Net) -> None:
        """Restore them."""
        super().load_state_dict(state, net)
        if self.model_copies:
            self.w = {n.removeprefix("w."): t.clone().requires_grad_() for n, t in state.items() if n.startswith("w.")}
            self.projected = state["projected"].cpu()
