"""GDumb: greedy sampler and dumb learner (Prabhu, Torr, Dokania, 2020)."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from itl.engine.batches import batch_sizes, num_batches
from itl.settings import Rate, Weight
from itl.specialists.base import Batch, Options, Phase, Specialist
from itl.specialists.losses import cross_entropy


class GDumbOptions(Options):
    """`min_lr`: learning rate at the end of a cycle. `cutmix`: α of CutMix, applied at half of the steps (0: never)."""

    min_lr: Rate = 5e-4
    cutmix: Weight = 1.0


class GDumb(Specialist):
    """Store the task's samples in a class-balanced memory, then train a new network on the memory alone.

    It learns from nothing but the memory, so every replay method should beat it. The learning rate follows cosine
    cycles of 2, 4, 8, … epochs, after one epoch at a tenth of the maximum and one at the maximum.
    """

    name = "gdumb"
    summary = "a new network on the memory alone: what every replay method should beat"
    reference = (
        "Prabhu, Torr, Dokania: GDumb: A Simple Approach that Questions Our Progress in Continual Learning, ECCV 2020"
    )
    defaults = {
        "memory.policy": "stratified",
        "specialist.lr": 0.05,
        "specialist.momentum": 0.9,
        "specialist.weight_decay": 1e-6,
        "specialist.epochs": 256,
    }
    note = "published for seq-cifar100; the batch size is the benchmark's 32, the paper uses 16"
    Options = GDumbOptions
    options: GDumbOptions
    data = "memory"
    resets_network = True
    num_replay_batches = 0  # the memory is the training data instead
    forward_batches = backward_batches = 1

    def training_phase(self) -> Phase:
        """Epochs over the memory, with a learning rate that is constant within an epoch."""
        phase, minimum = super().training_phase(), self.options.min_lr / self.settings.lr
        per_epoch = num_batches(len(self.context.memory), phase.batch_size)

        def curve(k: Tensor, total: int) -> Tensor:
            return torch.tensor([cosine_cycles(int(step) // per_epoch, minimum) for step in k], dtype=torch.float64)

        return replace(phase, optimizer=replace(phase.optimizer, curve=curve))

    def draw_inputs(self, rng: np.random.Generator, steps: int, first: int) -> dict[str, np.ndarray]:
        """CutMix's box (top, left, bottom, right) at each step, and sort keys for a random pairing of the images."""
        _, height, width = self.context.memory.pixels.shape[1:]
        alpha = self.options.cutmix
        share = rng.beta(alpha, alpha, steps) if alpha else np.ones(steps)
        share = np.where(rng.random(steps) < 0.5, share, 1.0)  # of the first image
        center = np.stack([rng.integers(0, height, steps), rng.integers(0, width, steps)], 1)
        half = (np.sqrt(1 - share)[:, None] * [height, width]).astype(np.int64) // 2
        box = np.concatenate([center - half, center + half], 1).clip(0, [height, width, height, width])
        largest = max(self.settings.batch, *batch_sizes(len(self.context.memory), self.settings.batch))
        return {"box": box, "keys": rng.random((steps, largest))}

    def loss(self, net: nn.Module, batch: Batch, replay_batches: tuple[Batch, ...]) -> Tensor:
        """λ CE(y) + (1 − λ) CE(y′) of images with a box from other images; λ is the area outside the box.

        The features of a frozen trunk are not mixed: a box of an image is no box of its features.
        """
        reduction = self.settings.reduction
        if tuple(self.context.memory.pixels.shape[2:]) == (1, 1):
            return cross_entropy(net(batch.x), batch.y, reduction)
        top, left, bottom, right = batch.extra["box"].unbind()
        other = batch.extra["keys"][: len(batch.y)].argsort()
        rows = torch.arange(batch.x.shape[2], device=batch.x.device)[:, None]
        columns = torch.arange(batch.x.shape[3], device=batch.x.device)
        inside = (rows >= top) & (rows < bottom) & (columns >= left) & (columns < right)
        logits = net(torch.where(inside, batch.x.index_select(0, other), batch.x))
        outside = 1 - inside.to(logits.dtype).mean()
        mixed = cross_entropy(logits, batch.y.index_select(0, other), reduction)
        return outside * cross_entropy(logits, batch.y, reduction) + (1 - outside) * mixed


def cosine_cycles(epoch: int, minimum: float) -> float:
    """Learning rate of an epoch relative to the maximum: 0.1, 1, then cosine cycles of 2, 4, 8, … epochs."""
    if epoch < 2:
        return (0.1, 1.0)[epoch]
    position, length = epoch - 2, 2
    while position >= length:
        position, length = position - length, 2 * length
    return minimum + (1 - minimum) * 0.5 * (1 + math.cos(math.pi * position / length))
