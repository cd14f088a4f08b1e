"""A-GEM: averaged gradient episodic memory (Chaudhry et al., 2019)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from itl.specialists.base import Batch, Specialist
from itl.specialists.losses import cross_entropy, shares


class AGEM(Specialist):
    """Descend the task's loss, less what would raise the loss on a batch from memory.

    g is the gradient on the task's batch, g_ref that on the memory's; where g·g_ref < 0, g is projected:
    g − (g·g_ref / g_ref·g_ref) g_ref (eq. 11 of the paper).
    """

    name = "agem"
    summary = "the task's gradient, projected so that it does not oppose the memory's"
    reference = "Chaudhry, Ranzato, Rohrbach, Elhoseiny: Efficient Lifelong Learning with A-GEM, ICLR 2019"
    defaults = {"memory.policy": "stratified", "specialist.lr": 0.03}
    stream_defaults = {("seq-tinyimagenet", None): {"specialist.lr": 0.01, "specialist.epochs": 100}}
    note = "the benchmark gives each task an equal part of the memory from the start; here tasks share all of it"

    def loss(self, net: nn.Module, now: Batch, pasts: tuple[Batch, ...]) -> Tensor:
        """CE(now); the gradient of CE(past) is kept for the projection."""
        how, logits = self.settings.reduction, net(now.x)
        now.said = logits.detach()
        self.memory_gradient: list[Tensor] = []
        for past in pasts[:1]:
            on_memory = cross_entropy(net(past.x), past.y, how, shares(past.weights))
            self.memory_gradient = list(
                torch.autograd.grad(on_memory, [p for p in net.parameters() if p.requires_grad])
            )
        return cross_entropy(logits, now.y, how)

    def gradient(self, grads: list[Tensor]) -> list[Tensor]:
        """The projected gradient; nothing here waits for the sign of g·g_ref."""
        if not self.memory_gradient:
            return grads
        reference = [r.to(g.dtype) for r, g in zip(self.memory_gradient, grads, strict=True)]
        self.memory_gradient = []
        g, g_ref = (torch.cat([part.reshape(-1) for part in parts]) for parts in (grads, reference))
        across = g @ g_ref
        back = torch.where(across < 0, across / (g_ref @ g_ref), 0.0)
        return list(torch._foreach_sub(grads, list(torch._foreach_mul(reference, back))))
