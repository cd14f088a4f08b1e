"""A-GEM: averaged gradient episodic memory (Chaudhry et al., 2019)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from itl.specialists.base import Batch, Specialist
from itl.specialists.losses import cross_entropy, normalize_weights


class AGEM(Specialist):
    """Gradient descent on the task's loss, projected so that the loss on a replay batch does not increase.

    g is the gradient on the task batch, g_ref the gradient on the replay batch. If g·g_ref < 0, g becomes
    g − (g·g_ref / g_ref·g_ref) g_ref (eq. 11 of the paper).
    """

    name = "agem"
    summary = "the task's gradient, projected so that it does not oppose the memory's"
    reference = "Chaudhry, Ranzato, Rohrbach, Elhoseiny: Efficient Lifelong Learning with A-GEM, ICLR 2019"
    defaults = {"memory.policy": "stratified", "specialist.lr": 0.03}
    stream_defaults = {("seq-tinyimagenet", None): {"specialist.lr": 0.01, "specialist.epochs": 100}}
    note = "the benchmark gives each task an equal part of the memory from the start; here tasks share all of it"

    def loss(self, net: nn.Module, batch: Batch, replay_batches: tuple[Batch, ...]) -> Tensor:
        """CE(task); the gradient of CE(replay) is saved for the projection."""
        reduction, logits = self.settings.reduction, net(batch.x)
        batch.outputs = logits.detach()
        self.memory_gradient: list[Tensor] = []
        for replay in replay_batches[:1]:
            replay_loss = cross_entropy(net(replay.x), replay.y, reduction, normalize_weights(replay.weights))
            self.memory_gradient = list(
                torch.autograd.grad(replay_loss, [p for p in net.parameters() if p.requires_grad])
            )
        return cross_entropy(logits, batch.y, reduction)

    def transform_gradients(self, grads: list[Tensor]) -> list[Tensor]:
        """The projected gradient; the sign of g·g_ref is not read on the host, which would synchronize."""
        if not self.memory_gradient:
            return grads
        reference = [r.to(g.dtype) for r, g in zip(self.memory_gradient, grads, strict=True)]
        self.memory_gradient = []
        g, g_ref = (torch.cat([part.reshape(-1) for part in parts]) for parts in (grads, reference))
        product = g @ g_ref
        scale = torch.where(product < 0, product / (g_ref @ g_ref), 0.0)
        return list(torch._foreach_sub(grads, list(torch._foreach_mul(reference, scale))))
