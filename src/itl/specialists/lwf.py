"""LwF: learning without forgetting (Li and Hoiem, 2016), for tasks of new classes and one classifier. No memory."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from itl.settings import Rate
from itl.specialists.base import Batch, Options, Specialist
from itl.specialists.losses import among, cross_entropy, distillation
from itl.specialists.model_copies import twin


class LwFOptions(Options):
    """`temperature`: T of the softened outputs."""

    temperature: Rate = 2.0


class LwF(Specialist):
    """CE among the classes seen + α × distillation of the outputs that the network had before the task.

    The old outputs are those of the present view, from a snapshot taken when the task begins. (The benchmark's code
    records them once, without augmentation, after a warm-up of the new outputs.)
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
    new_classes = True
    forwards, backwards = 2, 1

    @property
    def draws(self) -> int:
        """It looks at no memory."""
        return 0

    def task_starts(self) -> None:
        """Keep the network that knows the tasks before."""
        if self.context.past:
            self.twins["old"] = twin(self.context.net)

    def loss(self, net: nn.Module, now: Batch, pasts: tuple[Batch, ...]) -> Tensor:
        """CE over C_seen + α KD over C_past."""
        context, logits = self.context, net(now.x)
        now.said = logits.detach()
        loss = cross_entropy(among(logits, context.taught), now.y, self.settings.reduction)
        if not context.past:
            return loss
        with torch.no_grad():
            before = self.twins["old"](now.x)
        ours, theirs = (values.index_select(1, context.old) for values in (logits, before))
        return loss + self.settings.alpha * distillation(ours, theirs, self.options.temperature)
