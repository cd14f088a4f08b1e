"""LwF: learning without forgetting (Li and Hoiem, 2016), for tasks of new classes and one classifier. No memory."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from itl.settings import Rate
from itl.specialists.base import Batch, Options, Specialist
from itl.specialists.losses import cross_entropy, distillation, mask_logits
from itl.specialists.model_copies import frozen_copy


class LwFOptions(Options):
    """`temperature`: T of the distillation."""

    temperature: Rate = 2.0


class LwF(Specialist):
    """CE over the classes seen + α × distillation from the network as it was before the task.

    The old outputs are computed for the current augmented image, by a copy of the network made when the task begins.
    (The benchmark's code computes them once, without augmentation, after a warm-up of the new outputs.)
    """

    name = "lwf"
    summary = "distillation of the old outputs on the new images, no memory"
    reference = "Li, Hoiem: Learning without Forgetting, ECCV 2016"
    defaults = {
        "memory.policy": "none",
        "specialist.lr": 0.01,
        "specialist.alpha": 3.0,
        "specialist.weight_decay": 1e-3,
    }
    stream_defaults = {
        ("seq-cifar100", None): {"specialist.lr": 0.03},
        ("seq-tinyimagenet", None): {"specialist.alpha": 1.0, "specialist.epochs": 100},
    }
    Options = LwFOptions
    options: LwFOptions
    needs_memory = False
    requires_new_classes = True
    num_replay_batches = 0  # there is no replay
    forward_batches, backward_batches = 2, 1

    def on_task_start(self) -> None:
        """Copy the network for the distillation."""
        if self.context.past_classes:
            self.model_copies["old"] = frozen_copy(self.context.net)

    def loss(self, net: nn.Module, batch: Batch, replay_batches: tuple[Batch, ...]) -> Tensor:
        """CE over C_seen + α KD over C_past."""
        context, logits = self.context, net(batch.x)
        batch.outputs = logits.detach()
        loss = cross_entropy(mask_logits(logits, context.seen_mask), batch.y, self.settings.reduction)
        if not context.past_classes:
            return loss
        with torch.no_grad():
            old_logits = self.model_copies["old"](batch.x)
        student, teacher = (values.index_select(1, context.past_columns) for values in (logits, old_logits))
        return loss + self.settings.alpha * distillation(student, teacher, self.options.temperature)
