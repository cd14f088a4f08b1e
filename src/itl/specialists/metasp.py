"""MetaSP: example influence on stability and plasticity (Sun et al., 2022)."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from itl.engine.batches import num_batches
from itl.gradients.grad_sample import per_sample_gradients
from itl.gradients.virtual_update import detached_weights, gradient_step, loss_and_gradient
from itl.specialists.base import Batch, Options, concat
from itl.specialists.er import ER


class MetaSPOptions(Options):
    """`plain`: fraction of a task's epochs without replay and influence, at its start (the authors: 45 of 50)."""

    plain: Annotated[float, Field(strict=True, ge=0, lt=1, allow_inf_nan=False)] = 0.9


class MetaSP(ER):
    """ER with sample weights that follow each sample's influence on held-out old and new samples.

    A virtual step (θ̂) is made on the task and replay batches with free sample weights. The derivative of the loss at θ̂
    on old samples (a second draw from memory) with respect to a weight is the sample's influence on stability, that of
    the loss on new samples (drawn from the task) its influence on plasticity. Their min-norm combination I* is
    subtracted: the weights of the actual step are (1 − I*) / Σ (1 − I*), or zero where I* > 1. Influences are computed
    in evaluation mode. The first epochs of a task are plain fine-tuning.
    """

    name = "metasp"
    summary = "experience replay weighted by influence on old and new samples"
    reference = "Sun, Lyu, Shang, Feng, Wan: Exploring Example Influence in Continual Learning, NeurIPS 2022"
    defaults = {"memory.policy": "stratified", "specialist.lr": 0.1}
    note = "the authors' update by influence, without their choice of the memory by influence"
    Options = MetaSPOptions
    options: MetaSPOptions
    lookup_inputs = ("judge",)
    num_replay_batches = 2  # one batch to learn from, one to measure stability on
    forward_batches, backward_batches = 8, 5

    def on_epoch_start(self, index: int) -> None:
        """Determine whether this epoch replays."""
        s = self.settings
        epochs = s.epochs
        if s.steps is not None:
            epochs = min(epochs, -(-s.steps // num_batches(len(self.context.labels), s.batch)))
        self.replaying = index >= int(self.options.plain * epochs)

    def draw_inputs(self, rng: np.random.Generator, steps: int, first: int) -> dict[str, np.ndarray]:
        """Rows of the task to measure plasticity on, in epochs that replay."""
        if not self.replaying:
            return {}
        return {"judge": rng.integers(0, len(self.context.labels), (steps, self.settings.replay))}

    def loss(self, net: nn.Module, batch: Batch, replay_batches: tuple[Batch, ...]) -> Tensor:
        """Σ w_i CE_i over task and replay batch; plain CE(task) in the first epochs and while the memory is empty."""
        if not replay_batches or "judge" not in batch.lookups:
            return super().loss(net, batch, ())
        replay, old = replay_batches
        x, y = concat(batch.x, replay.x), concat(batch.y, replay.y)
        new = batch.lookups["judge"]
        training = net.training
        net.eval()
        with torch.enable_grad():
            held_out = [(old.x, old.y), (self.context.normalize(new.x), new.y)]
            stability, plasticity = influences(net, (x, y), held_out, self.settings.lr)
        net.train(training)
        weights = step_weights(min_norm_combination(stability, plasticity))
        logits = net(x)
        batch.outputs, replay.outputs = logits.detach().split([len(batch.y), len(replay.y)])
        return (weights * F.cross_entropy(logits.float(), y, reduction="none")).sum()


def influences(
    net: nn.Module, batch: tuple[Tensor, Tensor], held_out: list[tuple[Tensor, Tensor]], lr: float
) -> list[Tensor]:
    """Influence of each sample of a batch on the loss of each held-out set, scaled to the norm of that loss.

    The influence is ∂ CE(held out; θ̂) / ∂ ε_i at ε = 0 for θ̂ = θ − lr/n ∇ Σ (1 + ε_i) CE_i, which equals
    −lr/n ⟨∇CE_i(θ), ∇CE(held out; θ̂)⟩. The forward pass of the virtual step also yields the per-sample derivatives.

    Args:
        net: The network, in evaluation mode.
        batch: Images `[n, c, h, w]` and labels `[n]`.
        held_out: Images and labels of each held-out set.
        lr: Step size of the virtual step.

    Returns:
        Influences `[n]` for each held-out set; 0 where the loss after the virtual step is not finite.
    """
    x, y = batch
    weights, rate = detached_weights(net), lr / len(y)
    with torch.autocast(x.device.type, enabled=False):  # the backward passes would be in bf16 too
        gradients = per_sample_gradients(net, weights, x, y)
        ahead = gradient_step(weights, gradients.total, rate)
        losses, directions = zip(*(loss_and_gradient(net, ahead, *samples) for samples in held_out), strict=True)
        derivatives = -rate * gradients.along(directions)
    scaled = [each * loss / each.norm().clamp(min=1e-12) for each, loss in zip(derivatives, losses, strict=True)]
    return [torch.where(each.isfinite(), each, 0.0) for each in scaled]


def min_norm_combination(stability: Tensor, plasticity: Tensor) -> Tensor:
    """The convex combination of two vectors `[n]` with the smallest norm (MGDA for two objectives)."""
    difference = stability - plasticity
    gamma = ((-difference @ plasticity) / (difference @ difference).clamp(min=1e-24)).clamp(0.001, 0.999)
    return gamma * stability + (1 - gamma) * plasticity


def step_weights(influence: Tensor) -> Tensor:
    """(1 − I*) / Σ (1 − I*) for influences `[n]`, clipped at 0: maximizing a sample's loss would be unbounded."""
    weights = (1 - influence).clamp(min=0)
    return weights / weights.sum().clamp(min=1e-12)
