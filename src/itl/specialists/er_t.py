"""ER-T: experience replay with a bag of tricks (Buzzega et al., 2020)."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from itl.engine.stage import OptimizerConfig
from itl.nets import Net
from itl.settings import Rate
from itl.specialists.base import Batch, Options, Phase
from itl.specialists.er import ER
from itl.specialists.losses import cross_entropy


class Tricks(Options):
    """`decay` of the learning rate with every sample seen; `bias_epochs` over the memory, at `bias_lr`."""

    decay: Annotated[float, Field(strict=True, gt=0, le=1, allow_inf_nan=False)] = 1.0
    bias_epochs: Annotated[int, Field(strict=True, ge=0, le=100_000)] = 50
    bias_lr: Rate = 0.5


class ERT(ER):
    """ER with five tricks; two are the memory's, and one every memory here has.

    Independent buffer augmentation (a memory holds raw images), a loss-aware and balanced reservoir
    (`memory.policy=loss-aware`), a learning rate that decays exponentially with the samples seen, and bias control: at
    the task's end a scale and a shift of its classes' outputs are fitted to the memory (BiC, Wu et al., 2019), through
    which the network is then evaluated. They begin at 1 and 0 with every task.
    """

    name = "er-t"
    summary = "experience replay with tricks: bias control, decaying rate, loss-aware balanced reservoir"
    reference = (
        "Buzzega, Boschini, Porrello, Calderara: Rethinking Experience Replay: a Bag of Tricks for Continual Learning, "
        "ICPR 2020"
    )
    defaults = {
        "memory.policy": "loss-aware",
        "specialist.lr": 0.1,
        "specialist.options.decay": 0.99999935,
        "specialist.options.bias_epochs": 50,
        "specialist.options.bias_lr": 0.5,
    }
    stream_defaults = {
        ("seq-cifar10", 200): {"specialist.lr": 0.1},
        ("seq-cifar10", 500): {"specialist.lr": 0.03},
        ("seq-cifar10", 1000): {"specialist.lr": 0.03},
        ("seq-fmnist", None): {
            "specialist.epochs": 1,
            "specialist.batch": 10,
            "specialist.options.decay": 0.99995,
        },
        ("seq-fmnist", 200): {"specialist.lr": 0.03},
        ("seq-fmnist", 500): {"specialist.lr": 0.03},
        ("seq-fmnist", 1000): {"specialist.lr": 0.1},
    }
    note = "a buffer of 5120 uses the settings published for 1000, the largest"
    Options = Tricks
    options: Tricks

    def task_starts(self) -> None:
        """No correction yet, of the present task's outputs; remember how many samples came before."""
        device = self.context.engine.device
        self.bias = torch.tensor([1.0, 0.0], device=device, requires_grad=True)  # scale, shift
        self.columns = torch.tensor(self.context.classes, device=device)
        self.before = self.context.memory.slots.seen

    def phase(self) -> Phase:
        """The task's training, from where the decay has brought the learning rate."""
        plain, decay = super().phase(), self.options.decay
        seen = self.before

        def curve(k: Tensor, total: int) -> Tensor:
            return decay ** (seen + k * plain.batch)

        return replace(plain, optimizer=replace(plain.optimizer, curve=curve))

    def closing(self) -> Phase | None:
        """Fit scale and shift to the memory, over raw images and in evaluation mode."""
        o = self.options
        if not o.bias_epochs:
            return None
        return Phase(
            "closing",
            "memory",
            o.bias_epochs,
            self.settings.batch,
            OptimizerConfig(o.bias_lr),
            self.bias_loss,
            {"bias": self.bias},
            training=False,
            replays=False,
            augmented=False,
        )

    def bias_loss(self, net: nn.Module, now: Batch, pasts: tuple[Batch, ...]) -> Tensor:
        """CE of the corrected outputs; the network is not trained."""
        with torch.no_grad():
            logits = net(now.x)
        return cross_entropy(self.corrected(logits), now.y)

    def corrected(self, logits: Tensor) -> Tensor:
        """Scale and shift the outputs `[n, classes]` of the task's classes."""
        chosen = torch.zeros(logits.shape[1], dtype=torch.bool, device=logits.device).index_fill(0, self.columns, True)
        return torch.where(chosen, logits.float() * self.bias[0] + self.bias[1], logits.float())

    def logits(self, net: Net, x: Tensor) -> Tensor:
        """What is evaluated: the corrected outputs."""
        return self.corrected(super().logits(net, x))

    @torch.no_grad()
    def hand_over(self, net: Net) -> bool:
        """Put the correction into the classifier's weights."""
        layer = net.classifier
        layer.weight[self.columns] *= self.bias[0]
        layer.bias[self.columns] = layer.bias[self.columns] * self.bias[0] + self.bias[1]
        return True

    def extra_state(self) -> dict[str, Tensor]:
        """The correction, whose outputs they are, and how many samples came before the task."""
        if not hasattr(self, "bias"):
            return {}
        return {"bias": self.bias.detach(), "columns": self.columns, "before": torch.tensor(self.before)}

    def restore(self, kept: dict[str, Tensor], net: Net) -> None:
        """Take them up again."""
        if kept:
            self.bias = kept["bias"].clone().requires_grad_()
            self.columns, self.before = kept["columns"], int(kept["before"])
