"""Exponential moving average of the weights over the last steps (Polyak, Juditsky, 1992).

Every specialist whose options derive from `WeightAverageOptions` has it as an option; `Specialist` calls it.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from itl.engine.batches import num_batches
from itl.nets import Net
from itl.specialists.model_copies import copy_weights_, ema_update_, frozen_copy

COPY = "mean"  # name of the average among the specialist's model copies, and so in saved folders


class WeightAverage:
    """The average of the network's weights and batch-norm statistics, which is evaluated in place of the network.

    It restarts with every task. While it is younger than its horizon, all steps of the task have the same weight. At a
    constant learning rate it is less noisy than the weights of the last step. The average is stored in `copies`, the
    specialist's `model_copies`.
    """

    def __init__(self, decay: float) -> None:
        self.decay = decay  # 0 disables it
        self.steps_done = 0

    def start(self, copies: dict[str, Net], net: Net) -> None:
        """Restart the average for a new task."""
        if self.decay:
            copies[COPY] = frozen_copy(net)

    def on_epoch_start(self, index: int, samples: int, batch_size: int) -> None:
        """Count the task's steps before epoch `index`."""
        self.steps_done = index * num_batches(samples, batch_size)

    def draw_inputs(self, steps: int) -> dict[str, np.ndarray]:
        """The decay at each step of the epoch: 0 at the first step of the task, never above the option."""
        if not self.decay:
            return {}
        count = self.steps_done + np.arange(steps)
        return {"keep": np.minimum(count / (count + 1), self.decay).astype(np.float32)}

    def update(self, copies: dict[str, Net], net: nn.Module, extra: dict[str, Tensor]) -> None:
        """θ_mean ← keep θ_mean + (1 − keep) θ."""
        if self.decay:
            ema_update_(self.mutable_tensors(copies), _float_tensors(net), extra["keep"])

    def mutable_tensors(self, copies: dict[str, Net]) -> list[Tensor]:
        """Weights and statistics of the average."""
        return _float_tensors(copies[COPY]) if self.decay else []

    def model(self, copies: dict[str, Net], net: Net) -> Net:
        """The averaged network if there is one, else `net`."""
        return copies.get(COPY, net) if self.decay else net

    def copy_to(self, net: Net, copies: dict[str, Net]) -> bool:
        """Copy the average into `net`; return whether there is one."""
        model = self.model(copies, net)
        if model is not net:
            copy_weights_(net, model)
        return model is not net

    def discard(self, copies: dict[str, Net]) -> None:
        """Forget the average: a generalist has replaced the model."""
        if self.decay:
            copies.pop(COPY, None)


def _float_tensors(net: nn.Module) -> list[Tensor]:
    """Weights and statistics of a network, without batch norm's integer counters."""
    return [t for t in net.state_dict().values() if torch.is_floating_point(t)]
