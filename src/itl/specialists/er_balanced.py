"""Experience replay over one dataset: every class is drawn equally often from the task and the memory together."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from itl.settings import Probability
from itl.specialists.base import Batch, Options, Phase
from itl.specialists.er import ER
from itl.specialists.losses import at_least_float32, cross_entropy
from itl.specialists.model_copies import frozen_copy

PREVIOUS = "previous"  # the network before the task


class ERBalancedOptions(Options):
    """`consistency`: weight of the previous network's predictions as targets, in a task without new classes."""

    consistency: Probability = 0.25


class ERBalanced(ER):
    """CE over S(D_t ∪ B), where each class makes up the same share of an epoch.

    With a replay batch of fixed size, a class of the task is seen more often than one that is only in the memory, so
    the network prefers the task's classes: the more images of known classes a task has, the more the others lose.
    Here an epoch has as many samples as task and memory together, and no class is preferred.

    Training again until convergence still changes many predictions, so some classes lose accuracy by chance. If a task
    has no new classes, its targets are therefore a mixture of the labels and of the previous network's predictions.
    """

    name = "er-balanced"
    data = "both"
    num_replay_batches = 0  # the memory is part of the training data instead
    forward_batches = backward_batches = 1
    Options = ERBalancedOptions
    options: ERBalancedOptions

    def training_phase(self) -> Phase:
        """Class-balanced epochs over the task and the memory."""
        return replace(super().training_phase(), stratified=True)

    def on_task_start(self) -> None:
        """Copy the network if the task has no new classes."""
        if self.options.consistency and set(self.context.classes) <= set(self.context.past_classes):
            self.model_copies[PREVIOUS] = frozen_copy(self.context.net)

    def loss(self, net: nn.Module, batch: Batch, replay_batches: tuple[Batch, ...]) -> Tensor:
        """CE of labels, or of their mixture with the previous network's probabilities."""
        if PREVIOUS not in self.model_copies:
            return super().loss(net, batch, replay_batches)
        logits = net(batch.x)
        batch.outputs = logits.detach()
        with torch.no_grad():
            past = at_least_float32(self.model_copies[PREVIOUS](batch.x)).softmax(1)
        labels = F.one_hot(batch.y, past.shape[1]).to(past.dtype)
        targets = torch.lerp(labels, past, self.options.consistency)
        return cross_entropy(logits, targets, self.settings.reduction)

    def on_task_end(self) -> None:
        """Discard the copy."""
        self.model_copies.pop(PREVIOUS, None)
