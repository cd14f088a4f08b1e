"""GMED: gradient-based editing of memory examples (Jin et al., 2021)."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from itl.augment import Augment
from itl.gradients.virtual_update import detached_weights, logits_at, virtual_step
from itl.settings import Rate, Weight
from itl.specialists.base import Batch, Options, Phase, concat
from itl.specialists.er import ER
from itl.specialists.losses import cross_entropy

NO_AUGMENTATION = Augment(padding=0, flip=False)


class GMEDOptions(Options):
    """`stride`: α, the step size of an edit. `regularise`: β, the weight of the sample's own gradient in it."""

    stride: Rate = 0.1
    regularise: Weight = 0.01


class GMED(ER):
    """ER whose replayed images are first edited so that the coming step interferes with them more.

    With θ′ one step ahead on the task batch, x ← x + α (∇ℓ(x; θ′) − ∇ℓ(x; θ) + β ∇ℓ(x; θ)), signs as in the authors'
    code. Edits are stored with the memory in normalized units, so images are replayed without crop or flip; a newly
    written image has no edit. Loss: CE(task) + CE(replay).
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
    Options = GMEDOptions
    options: GMEDOptions
    forward_batches, backward_batches = 5, 5

    def training_phase(self) -> Phase:
        """The usual training, with the memory's images not augmented."""
        self.context = replace(self.context, augment_memory=NO_AUGMENTATION)
        memory = self.context.memory
        if memory.edits is None:
            memory.edits = torch.zeros(memory.pixels.shape, device=memory.pixels.device)
        return super().training_phase()

    def loss(self, net: nn.Module, batch: Batch, replay_batches: tuple[Batch, ...]) -> Tensor:
        """Edit the replayed images, then learn from them; CE(task) while the memory is empty."""
        reduction = self.settings.reduction
        for replay in replay_batches:
            assert replay.slots is not None
            current = replay.x + self.edits.index_select(0, replay.slots)
            edited = self.edit(net, batch, current, replay.y)
            self.edits.index_copy_(0, replay.slots, edited - replay.x)
            replay.x = edited
        logits = net(concat(batch.x, *(replay.x for replay in replay_batches)))
        task_logits, *replay_logits = logits.split([len(batch.y), *(len(replay.y) for replay in replay_batches)])
        batch.outputs = task_logits.detach()
        loss = cross_entropy(task_logits, batch.y, reduction)
        for replay, outputs in zip(replay_batches, replay_logits, strict=True):
            replay.outputs = outputs.detach()
            loss = loss + cross_entropy(outputs, replay.y, reduction)
        if batch.slots is not None:
            self.edits.index_fill_(0, batch.slots, 0.0)
        return loss

    def edit(self, net: nn.Module, batch: Batch, x: Tensor, y: Tensor) -> Tensor:
        """Edited images `[n, c, h, w]`, from images `x` with labels `y` `[n]` and the task batch."""
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            weights = detached_weights(net)
            (before,) = torch.autograd.grad(F.cross_entropy(logits_at(net, weights, x), y), x)
            ahead = virtual_step(net, weights, batch.x, batch.y, self.settings.lr)
            (after,) = torch.autograd.grad(F.cross_entropy(logits_at(net, ahead, x), y), x)
        return (x + self.options.stride * (after - before + self.options.regularise * before)).detach()

    @property
    def edits(self) -> Tensor:
        """The sum of all edits of each image in memory `[size + 1, c, h, w]`."""
        edits = self.context.memory.edits
        assert edits is not None
        return edits

    def mutable_tensors(self) -> list[Tensor]:
        """The edits."""
        return [self.edits]
