"""A-GEM: averaged gradient episodic memory (Chaudhry et al., 2019)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from itl.nets import forwards
from itl.specialists.base import Specialist, View
from itl.specialists.losses import cross_entropy, shares


class AGEM(Specialist):
    """Descend the task's loss, less what would raise the loss on a batch from memory.

    g is the gradient on the task's batch, g_ref that on the memory's; where g·g_ref < 0, g is projected:
    g − (g·g_ref / g_ref·g_ref) g_ref (eq. 11 of the paper).
    """

    name = "agem"

    def loss(self, net: nn.Module, now: View, pasts: tuple[View, ...]) -> Tensor:
        """CE(now); the gradient of CE(past) is kept for the projection."""
        now_logits, *past_logits = forwards(net, now.x, *(past.x for past in pasts))
        now.said, how = now_logits.detach(), self.settings.reduction
        self.reference: list[Tensor] = []
        if pasts:
            on_memory = cross_entropy(past_logits[0], pasts[0].y, how, shares(pasts[0].weights))
            self.reference = list(torch.autograd.grad(on_memory, list(net.parameters()), retain_graph=True))
        return cross_entropy(now_logits, now.y, how)

    def gradient(self, grads: list[Tensor]) -> list[Tensor]:
        """The projected gradient; nothing here waits for the sign of g·g_ref."""
        if not self.reference:
            return grads
        reference = [r.to(g.dtype) for r, g in zip(self.reference, grads, strict=True)]
        self.reference = []
        across = sum_of_products(grads, reference)
        along = sum_of_products(reference, reference)
        back = torch.where(across < 0, across / along, torch.zeros_like(across))
        return [g - back * r for g, r in zip(grads, reference, strict=True)]


def sum_of_products(a: list[Tensor], b: list[Tensor]) -> Tensor:
    """The inner product of two gradients."""
    return torch.stack([(x * y).sum() for x, y in zip(a, b, strict=True)]).sum()
