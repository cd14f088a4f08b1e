"""MetaSP: example influence on stability and plasticity (Sun et al., 2022)."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from itl.engine.batches import num_batches
from itl.gradients.per_sample import passed
from itl.gradients.virtual_update import descended, judged, present
from itl.specialists.base import Batch, Options, join
from itl.specialists.er import ER


class Influence(Options):
    """`plain`: the part of a task's epochs that goes by without replay and influence (the authors' 45 of 50)."""

    plain: Annotated[float, Field(strict=True, ge=0, lt=1, allow_inf_nan=False)] = 0.9


class MetaSP(ER):
    """ER whose samples count for what they do to held-out old and new samples.

    A step is tried (θ̂) on the task's batch and the replayed one, with every sample's weight free. How the loss on old
    samples (a second draw from memory) and on new ones (drawn from the task) at θ̂ changes with a weight is the
    sample's influence on stability and on plasticity; their min-norm mixture I* is subtracted: the step's weights are
    (1 − I*) / Σ (1 − I*), where I* is above 1 zero. Influences are computed in evaluation mode. The first epochs of
    a task fine-tune alone.
    """

    name = "metasp"
    summary = "experience replay weighted by influence on old and new samples"
    reference = "Sun, Lyu, Shang, Feng, Wan: Exploring Example Influence in Continual Learning, NeurIPS 2022"
    defaults = {"memory.policy": "stratified", "specialist.lr": 0.1}
    note = "the authors' update by influence, without their choice of the memory by influence"
    Options = Influence
    options: Influence
    looks_up = ("judge",)
    forwards, backwards = 8, 5

    @property
    def draws(self) -> int:
        """One batch to learn from, one to judge by."""
        return 2

    def epoch_starts(self, index: int) -> None:
        """Whether this epoch replays."""
        s = self.settings
        epochs = s.epochs
        if s.steps is not None:
            epochs = min(epochs, -(-s.steps // num_batches(len(self.context.labels), s.batch)))
        self.replaying = index >= int(self.options.plain * epochs)

    def inputs(self, rng: np.random.Generator, steps: int, first: int) -> dict[str, np.ndarray]:
        """Rows of the task to judge plasticity by, in the epochs that do."""
        if not self.replaying:
            return {}
        return {"judge": rng.integers(0, len(self.context.labels), (steps, self.settings.replay))}

    def loss(self, net: nn.Module, now: Batch, pasts: tuple[Batch, ...]) -> Tensor:
        """Σ w_i CE_i over the task's and the replayed batch; without memory, and at first, plain CE(now)."""
        if not pasts or "judge.x" not in now.extra:
            return super().loss(net, now, ())
        past, old = pasts
        x, y = join(now.x, past.x), join(now.y, past.y)
        new_x, new_y = self.context.normalize(now.extra["judge.x"]), now.extra["judge.y"]
        training = net.training
        net.eval()
        with torch.enable_grad():
            each = influences(net, (x, y), [(old.x, old.y), (new_x, new_y)], self.settings.lr)
        net.train(training)
        weights = step_weights(fused(*each))
        logits = net(x)
        now.said, past.said = logits.detach().split([len(now.y), len(past.y)])
        now.logits = now.said
        return (weights * F.cross_entropy(logits.float(), y, reduction="none")).sum()


def influences(
    net: nn.Module, batch: tuple[Tensor, Tensor], judges: list[tuple[Tensor, Tensor]], lr: float
) -> list[Tensor]:
    """∂ CE(judge; θ̂) / ∂ ε_i at ε = 0 for θ̂ = θ − lr/n ∇ Σ (1 + ε_i) CE_i, scaled to the judge's loss: each `[n]`.

    That is −lr/n ⟨∇CE_i(θ), ∇CE(judge; θ̂)⟩: the pass that the step is tried by also says how each of the batch's losses
    changes along any direction. A step that leads where no loss is finite says nothing of its samples: 0.
    """
    x, y = batch
    weights, rate = present(net), lr / len(y)
    with torch.autocast(x.device.type, enabled=False):  # the backward passes would be in bf16 too
        tried = passed(net, weights, x, y)
        ahead = descended(weights, tried.gradient, rate)
        losses, directions = zip(*(judged(net, ahead, *judge) for judge in judges), strict=True)
        raw = -rate * tried.along(directions)
    scaled = [each * loss / each.norm().clamp(min=1e-12) for each, loss in zip(raw, losses, strict=True)]
    return [torch.where(each.isfinite(), each, 0.0) for each in scaled]


def fused(stability: Tensor, plasticity: Tensor) -> Tensor:
    """The shortest vector between the two `[n]` (MGDA's solution for two)."""
    apart = stability - plasticity
    gamma = ((-apart @ plasticity) / (apart @ apart).clamp(min=1e-24)).clamp(0.001, 0.999)
    return gamma * stability + (1 - gamma) * plasticity


def step_weights(influence: Tensor) -> Tensor:
    """(1 − I*) / Σ (1 − I*) of influences `[n]`; a loss that is to rise has no bottom, so no weight is below zero."""
    weights = (1 - influence).clamp(min=0)
    return weights / weights.sum().clamp(min=1e-12)
