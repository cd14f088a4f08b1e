"""The paper's other design: the specialist lives on a tangent plane of the generalist, which evolves on the manifold.

Every task trains w on the plane at f_{t-1} over the task and the memory, and the projection along the task makes a
network of it; the memory is updated; then the generalist fine-tunes all of that network on the memory alone. The first
task, which has no generalist to stand on, is trained on the manifold. The paper argues (Discussion) that this design
fails: non-linear fine-tuning on a few images forgets and over-fits.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from itl.engine.stage import OptimizerConfig
from itl.generalists.tangent_model import TangentModel
from itl.nets import Net
from itl.settings import OnMemory, Settings
from itl.specialists import Batch, Phase, concat
from itl.specialists.er import ER
from itl.specialists.losses import cross_entropy, squared_error
from itl.specialists.model_copies import frozen_copy


def _descent(settings: OnMemory) -> OptimizerConfig:
    return OptimizerConfig(settings.lr, settings.momentum, settings.l2, settings.schedule)


def _exactly(model: TangentModel, w: dict[str, Tensor], x: Tensor) -> Tensor:
    """Logits on the plane, never in bf16, whatever the specialist's precision is."""
    with torch.autocast(x.device.type, enabled=False):
        return model(w, x.float())


class TangentSpecialist(ER):
    """w_t = argmin CE(f + ∇f w; D_t ∪ B_{t-1}), then f' = argmin ‖f' − (f + ∇f w_t)‖² over D_t.

    `specialist.epochs` and `batch` say how long w is learned, the `tangent.` settings how it descends; the projection
    has its own.
    """

    name = "tangent"

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings.specialist)
        self.all = settings

    def on_task_start(self) -> None:
        """The plane's point of contact is the generalist as it stands; w = 0."""
        if not self.context.task:
            return
        self.model_copies["anchor"] = frozen_copy(self.context.net)
        self.w = {name: w.requires_grad_() for name, w in self.model().zero().items()}
        self.projected = torch.zeros((), dtype=torch.bool)

    def model(self) -> TangentModel:
        """The plane at the anchor."""
        return TangentModel(self.model_copies["anchor"], self.all.tangent.layers)

    def training_phase(self) -> Phase:
        """Learning w."""
        if not self.context.task:
            return super().training_phase()
        s = self.settings
        model = self.model()

        def loss(net: nn.Module, batch: Batch, replay_batches: tuple[Batch, ...]) -> Tensor:
            x, y = concat(batch.x, *(p.x for p in replay_batches)), concat(batch.y, *(p.y for p in replay_batches))
            return cross_entropy(_exactly(model, self.w, x), y, s.reduction)

        optimizer = _descent(self.all.tangent)
        return Phase("specialist", "task", s.epochs, s.batch, optimizer, loss, dict(self.w), s.steps, training=False)

    def closing_phase(self) -> Phase | None:
        """The projection, along the task."""
        if not self.context.task:
            return None
        p, model = self.all.projection, self.model()
        w = {name: t.detach() for name, t in self.w.items()}
        self.projected.fill_(True)

        def loss(net: nn.Module, batch: Batch, replay_batches: tuple[Batch, ...]) -> Tensor:
            with torch.no_grad():
                target = _exactly(model, w, batch.x)
            return squared_error(net(batch.x), target, p.reduction)

        parameters: dict[str, Tensor] = dict(self.context.net.named_parameters())
        training = p.batch_norm == "train"
        return Phase(
            "closing",
            "task",
            p.epochs,
            p.batch,
            _descent(p),
            loss,
            parameters,
            p.steps,
            training=training,
            replays=False,
        )

    def evaluate_logits(self, net: Net, x: Tensor) -> Tensor:
        """The tangent model while w is learned, the network once it is projected."""
        if "anchor" not in self.model_copies or bool(self.projected):
            return super().evaluate_logits(net, x)
        return _exactly(self.model(), self.w, x)

    def state_dict(self) -> dict[str, Tensor]:
        """The point of contact and w."""
        own = (
            {f"w.{name}": t.detach() for name, t in self.w.items()} | {"projected": self.projected}
            if self.model_copies
            else {}
        )
        return {**super().state_dict(), **own}

    def load_state_dict(self, state: dict[str, Tensor], net: Net) -> None:
        """Take them up again."""
        super().load_state_dict(state, net)
        if self.model_copies:
            self.w = {n.removeprefix("w."): t.clone().requires_grad_() for n, t in state.items() if n.startswith("w.")}
            self.projected = state["projected"].cpu()
