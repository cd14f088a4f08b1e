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
    """`min_lr` is where a cycle of the learning rate ends; `cutmix` is CutMix's α (0: none), taken half of the time."""

    min_lr: Rate = 5e-4
    cutmix: Weight = 1.0


class GDumb(Specialist):
    """Take the task's samples into a memory balanced by class, then train a new network on the memory alone.

    It learns nothing from the stream but what it stores: what every replay method should beat. The learning rate goes
    by cosine cycles of 2, 4, 8, … epochs after a warm epoch at a tenth of it and one at full height.
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
    over = "memory"
    restarts = True
    forwards = backwards = 1

    @property
    def draws(self) -> int:
        """The memory is its data."""
        return 0

    def phase(self) -> Phase:
        """Epochs over the memory, the learning rate changing from one to the next."""
        usual, least = super().phase(), self.options.min_lr / self.settings.lr
        per_epoch = num_batches(len(self.context.memory), usual.batch)

        def curve(k: Tensor, total: int) -> Tensor:
            return torch.tensor([height(int(step) // per_epoch, least) for step in k], dtype=torch.float64)

        return replace(usual, optimizer=replace(usual.optimizer, curve=curve))

    def inputs(self, rng: np.random.Generator, steps: int, first: int) -> dict[str, np.ndarray]:
        """CutMix's box (top, left, bottom, right) at each step, and keys whose order pairs the images."""
        _, height, width = self.context.memory.pixels.shape[1:]
        alpha = self.options.cutmix
        share = rng.beta(alpha, alpha, steps) if alpha else np.ones(steps)
        share = np.where(rng.random(steps) < 0.5, share, 1.0)  # of the image that stays
        centre = np.stack([rng.integers(0, height, steps), rng.integers(0, width, steps)], 1)
        half = (np.sqrt(1 - share)[:, None] * [height, width]).astype(np.int64) // 2
        box = np.concatenate([centre - half, centre + half], 1).clip(0, [height, width, height, width])
        most = max(self.settings.batch, *batch_sizes(len(self.context.memory), self.settings.batch))
        return {"box": box, "keys": rng.random((steps, most))}

    def loss(self, net: nn.Module, now: Batch, pasts: tuple[Batch, ...]) -> Tensor:
        """λ CE(y) + (1 − λ) CE(y′) of images with a box cut out of other images; λ is the share that is left."""
        top, left, bottom, right = now.extra["box"].unbind()
        other = now.extra["keys"][: len(now.y)].argsort()
        rows = torch.arange(now.x.shape[2], device=now.x.device)[:, None]
        columns = torch.arange(now.x.shape[3], device=now.x.device)
        inside = (rows >= top) & (rows < bottom) & (columns >= left) & (columns < right)
        logits = net(torch.where(inside, now.x.index_select(0, other), now.x))
        left_over = 1 - inside.to(logits.dtype).mean()
        how = self.settings.reduction
        mixed = cross_entropy(logits, now.y.index_select(0, other), how)
        return left_over * cross_entropy(logits, now.y, how) + (1 - left_over) * mixed


def height(epoch: int, least: float) -> float:
    """The learning rate of an epoch, as a share of the highest: 0.1, 1, then cosine cycles of 2, 4, 8, … epochs."""
    if epoch < 2:
        return (0.1, 1.0)[epoch]
    at, length = epoch - 2, 2
    while at >= length:
        at, length = at - length, 2 * length
    return least + (1 - least) * 0.5 * (1 + math.cos(math.pi * at / length))
