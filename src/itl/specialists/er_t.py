"""ER-T: experience replay with a bag of tricks (Buzzega et al., 2020)."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from itl.engine.batches import num_batches
from itl.engine.stage import OptimizerConfig
from itl.nets import Net
from itl.settings import Rate
from itl.specialists.base import Batch, Options, Phase
from itl.specialists.er import ER
from itl.specialists.losses import cross_entropy


class ERTOptions(Options):
    """Options of ER with tricks.

    Attributes:
        decay: Factor of the learning rate per sample seen.
        bias_epochs: Epochs over the memory for the bias correction.
        bias_lr: Learning rate of the bias correction.
    """

    decay: Annotated[float, Field(strict=True, gt=0, le=1, allow_inf_nan=False)] = 1.0
    bias_epochs: Annotated[int, Field(strict=True, ge=0, le=100_000)] = 50
    bias_lr: Rate = 0.5


class ERT(ER):
    """ER with five tricks, of which the memory implements three.

    The tricks are independent buffer augmentation (the memory stores raw images), a loss-aware and balanced reservoir
    (`memory.policy=loss-aware`), a learning rate that decays exponentially with the samples seen, and bias control: at
    the task's end a scale and a shift of its classes' outputs are fitted on the memory (BiC, Wu et al., 2019) and
    applied in evaluation. They are reset to 1 and 0 with every task.
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
    Options = ERTOptions
    options: ERTOptions

    def on_task_start(self) -> None:
        """Reset the correction and record how many samples came before the task."""
        device = self.context.engine.device
        self.bias = torch.tensor([1.0, 0.0], device=device, requires_grad=True)  # scale, shift
        self.columns = torch.tensor(self.context.classes, device=device)
        self.samples_before = self.context.memory.slots.seen

    def training_phase(self) -> Phase:
        """The usual training, with a learning rate that decays with every sample since the first task."""
        phase, decay = super().training_phase(), self.options.decay
        samples_before, per_epoch = self.samples_before, len(self.context.labels)
        steps_per_epoch = num_batches(per_epoch, phase.batch_size)

        def curve(k: Tensor, total: int) -> Tensor:
            epochs, steps = k // steps_per_epoch, k % steps_per_epoch  # the last batch of an epoch may be smaller
            return decay ** (samples_before + epochs * per_epoch + steps * phase.batch_size)

        return replace(phase, optimizer=replace(phase.optimizer, curve=curve))

    def closing_phase(self) -> Phase | None:
        """Fit scale and shift on the memory's raw images, in evaluation mode."""
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

    def bias_loss(self, net: nn.Module, batch: Batch, replay_batches: tuple[Batch, ...]) -> Tensor:
        """CE of the corrected logits; the network is frozen."""
        with torch.no_grad():
            logits = net(batch.x)
        return cross_entropy(self.correct(logits), batch.y)

    def correct(self, logits: Tensor) -> Tensor:
        """Apply scale and shift to the columns of the task's classes in `logits` `[n, classes]`."""
        chosen = torch.zeros(logits.shape[1], dtype=torch.bool, device=logits.device).index_fill(0, self.columns, True)
        return torch.where(chosen, logits.float() * self.bias[0] + self.bias[1], logits.float())

    def evaluate_logits(self, net: Net, x: Tensor) -> Tensor:
        """The corrected logits."""
        return self.correct(super().evaluate_logits(net, x))

    @torch.no_grad()
    def on_generalist_start(self, net: Net) -> bool:
        """Fold the correction into the classifier's weights."""
        layer = net.classifier
        layer.weight[self.columns] *= self.bias[0]
        layer.bias[self.columns] = layer.bias[self.columns] * self.bias[0] + self.bias[1]
        return True

    def state_dict(self) -> dict[str, Tensor]:
        """The correction, its columns, and how many samples came before the task."""
        if not hasattr(self, "bias"):
            return {}
        return {"bias": self.bias.detach(), "columns": self.columns, "before": torch.tensor(self.samples_before)}

    def load_state_dict(self, state: dict[str, Tensor], net: Net) -> None:
        """Restore what `state_dict` returned."""
        if state:
            self.bias = state["bias"].clone().requires_grad_()
            self.columns, self.samples_before = state["columns"], int(state["before"])
