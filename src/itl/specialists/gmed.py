"""GMED: gradient-based editing of memory examples (Jin et al., 2021)."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from itl.augment import Augment
from itl.gradients.virtual_update import present, said, stepped
from itl.settings import Rate, Weight
from itl.specialists.base import Batch, Options, Phase, join
from itl.specialists.er import ER
from itl.specialists.losses import cross_entropy

RAW = Augment(padding=0, flip=False)


class Editing(Options):
    """α, how far an image is moved, and β, how much of its own loss's gradient goes into the direction."""

    stride: Rate = 0.1
    regularise: Weight = 0.01


class GMED(ER):
    """ER whose replayed images are edited first, towards what the coming step would make the network forget.

    With θ' one step ahead on the task's batch, x ← x + α (∇ℓ(x; θ') − ∇ℓ(x; θ) + β ∇ℓ(x; θ)), the signs as in the
    authors' code. Edits are kept beside the memory in the network's own units, so images are replayed as they were
    stored, without crop or flip; what overwrites an image begins unedited. Loss: CE(now) + CE(past).
    """

    name = "gmed"
    summary = "experience replay of images edited towards what would be forgotten"
    reference = (
        "Jin, Sadhu, Du, Ren: Gradient-based Editing of Memory Examples for Online Task-free Continual Learning, "
        "NeurIPS 2021"
    )
    defaults = {
        "memory.policy": "reservoir",
        "specialist.lr": 0.1,
        "specialist.options.stride": 0.1,
        "specialist.options.regularise": 0.01,
    }
    note = "published for one pass in batches of 10; stride and regularise are from the authors' example for MNIST"
    Options = Editing
    options: Editing
    forwards, backwards = 5, 5

    def phase(self) -> Phase:
        """The usual training, with the memory's images as they lie there."""
        self.context = replace(self.context, augment_memory=RAW)
        memory = self.context.memory
        if memory.edits is None:
            memory.edits = torch.zeros(memory.pixels.shape, device=memory.pixels.device)
        return super().phase()

    def loss(self, net: nn.Module, now: Batch, pasts: tuple[Batch, ...]) -> Tensor:
        """Edit, then learn from the edited; on an empty memory CE(now)."""
        how = self.settings.reduction
        for past in pasts:
            assert past.slots is not None
            seen = past.x + self.edits.index_select(0, past.slots)
            edited = self.edit(net, now, seen, past.y)
            self.edits.index_copy_(0, past.slots, edited - past.x)
            past.x = edited
        logits = net(join(now.x, *(past.x for past in pasts)))
        now.said, *replayed = logits.split([len(now.y), *(len(past.y) for past in pasts)])
        now.logits = now.said.detach()
        loss = cross_entropy(now.said, now.y, how)
        for past, those in zip(pasts, replayed, strict=True):
            past.said = those.detach()
            loss = loss + cross_entropy(those, past.y, how)
        if now.slots is not None:
            self.edits.index_fill_(0, now.slots, 0.0)
        return loss

    def edit(self, net: nn.Module, now: Batch, x: Tensor, y: Tensor) -> Tensor:
        """Images `[n, c, h, w]` of classes `[n]`, moved."""
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            weights = present(net)
            (before,) = torch.autograd.grad(F.cross_entropy(said(net, weights, x), y), x)
            ahead = stepped(net, weights, now.x, now.y, self.settings.lr)
            (after,) = torch.autograd.grad(F.cross_entropy(said(net, ahead, x), y), x)
        return (x + self.options.stride * (after - before + self.options.regularise * before)).detach()

    @property
    def edits(self) -> Tensor:
        """What each image of the memory has been moved by so far."""
        edits = self.context.memory.edits
        assert edits is not None
        return edits

    def changed(self) -> list[Tensor]:
        """The edits."""
        return [self.edits]
