"""CLS-ER: complementary learning systems, fast and slow (Arani, Sarfraz, Zonooz, 2022)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from itl.nets import Net
from itl.settings import Probability, Weight
from itl.specialists.base import Batch, Options, Specialist
from itl.specialists.losses import at_least_float32, cross_entropy, normalize_weights, squared_error
from itl.specialists.model_copies import copy_weights_, ema_update_, frozen_copy, grow_outputs

AVERAGES = ("plastic", "stable")


class CLSEROptions(Options):
    """Options of CLS-ER, which keeps a plastic and a stable average of the weights.

    Attributes:
        reg: Weight of the consistency term.
        plastic_rate: Probability that a step updates the plastic average.
        plastic_alpha: Decay of the plastic average.
        stable_rate: Probability that a step updates the stable average.
        stable_alpha: Decay of the stable average.
    """

    reg: Weight = 0.15
    plastic_rate: Probability = 0.3
    plastic_alpha: Probability = 0.999
    stable_rate: Probability = 0.1
    stable_alpha: Probability = 0.999


class CLSER(Specialist):
    """ER + reg ‖p(x) − z‖² on the replay batch, with z from the plastic or the stable average of the weights.

    For each sample, z comes from the average that gives the sample's label the higher probability. The stable average,
    which changes more slowly, is evaluated. Both averages see the replay batch in training mode, as in the authors'
    code: that is how their batch-norm statistics are estimated.
    """

    name = "cls-er"
    summary = "replay consistent with two moving averages of the weights; the slower one predicts"
    reference = (
        "Arani, Sarfraz, Zonooz: Learning Fast, Learning Slow: A General Continual Learning Method based on "
        "Complementary Learning System, ICLR 2022"
    )
    defaults = {"memory.policy": "reservoir", "specialist.lr": 0.1}
    stream_defaults = {
        ("seq-cifar10", 200): {
            "specialist.lr": 0.1,
            "specialist.options.reg": 0.15,
            "specialist.options.stable_rate": 0.1,
            "specialist.options.plastic_rate": 0.3,
        },
        ("seq-cifar10", 500): {
            "specialist.lr": 0.1,
            "specialist.options.reg": 0.15,
            "specialist.options.stable_rate": 0.1,
            "specialist.options.plastic_rate": 0.9,
        },
        ("seq-cifar10", 5120): {
            "specialist.lr": 0.1,
            "specialist.options.reg": 0.15,
            "specialist.options.stable_rate": 0.8,
            "specialist.options.plastic_rate": 1.0,
        },
        ("seq-tinyimagenet", 200): {
            "specialist.lr": 0.05,
            "specialist.options.reg": 0.1,
            "specialist.options.stable_rate": 0.04,
            "specialist.options.plastic_rate": 0.08,
        },
        ("seq-tinyimagenet", 500): {
            "specialist.lr": 0.05,
            "specialist.options.reg": 0.1,
            "specialist.options.stable_rate": 0.05,
            "specialist.options.plastic_rate": 0.08,
        },
        ("seq-tinyimagenet", 5120): {
            "specialist.lr": 0.05,
            "specialist.options.reg": 0.1,
            "specialist.options.stable_rate": 0.07,
            "specialist.options.plastic_rate": 0.08,
        },
    }
    Options = CLSEROptions
    options: CLSEROptions
    forward_batches, backward_batches = 5, 3

    def on_task_start(self) -> None:
        """Copy the network on the first task; later only add its new outputs to the averages."""
        for name in AVERAGES:
            if name not in self.model_copies:
                self.model_copies[name] = frozen_copy(self.context.net)
            grow_outputs(self.model_copies[name], self.context.net)

    def draw_inputs(self, rng: np.random.Generator, steps: int, first: int) -> dict[str, np.ndarray]:
        """The decay of each average at each step: 1 where it is not updated."""
        count = first + 1 + np.arange(steps)
        out = {}
        for name in AVERAGES:
            alpha = np.minimum(1 - 1 / (count + 1), getattr(self.options, f"{name}_alpha"))
            updated = rng.random(steps) < getattr(self.options, f"{name}_rate")
            out[name] = np.where(updated, alpha, 1.0).astype(np.float32)
        return out

    def loss(self, net: nn.Module, batch: Batch, replay_batches: tuple[Batch, ...]) -> Tensor:
        """CE over S(D_t) ∪ S(B) + reg × consistency on S(B)."""
        reduction = self.settings.reduction
        if not replay_batches:
            logits = net(batch.x)
            batch.outputs = logits.detach()
            return cross_entropy(logits, batch.y, reduction)
        replay = replay_batches[0]
        with torch.no_grad():
            stable, plastic = (
                at_least_float32(self.model_copies[name].train()(replay.x)) for name in ("stable", "plastic")
            )
            probability = [logits.softmax(1).gather(1, replay.y[:, None]) for logits in (stable, plastic)]
            target = torch.where(probability[0] > probability[1], stable, plastic)
        weights = normalize_weights(replay.weights)
        consistency = self.options.reg * squared_error(net(replay.x), target, reduction, weights=weights)
        logits = net(torch.cat([batch.x, replay.x]))
        batch.outputs = logits[: len(batch.y)].detach()
        if weights is not None:
            weights = torch.cat([torch.ones_like(batch.y, dtype=weights.dtype), weights])
        return consistency + cross_entropy(logits, torch.cat([batch.y, replay.y]), reduction, weights)

    def after_step(self, net: nn.Module, batch: Batch, replay_batches: tuple[Batch, ...]) -> None:
        """θ_avg ← α θ_avg + (1 − α) θ."""
        for name in AVERAGES:
            ema_update_(list(self.model_copies[name].parameters()), list(net.parameters()), batch.extra[name])

    def mutable_tensors(self) -> list[Tensor]:
        """Weights and statistics of the averages."""
        return [t for name in AVERAGES for t in self.model_copies[name].state_dict().values()]

    def evaluate_logits(self, net: Net, x: Tensor) -> Tensor:
        """Logits of the stable average."""
        return self.model_copies["stable"].eval()(x)  # type: ignore[no-any-return]

    def on_generalist_start(self, net: Net) -> bool:
        """Start the generalist from the stable average."""
        copy_weights_(net, self.model_copies["stable"])
        return True

    def on_generalist_end(self, net: Net) -> None:
        """Continue both averages from the expert."""
        for name in AVERAGES:
            copy_weights_(self.model_copies[name], net)
