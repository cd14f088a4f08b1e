"""iCaRL: incremental classifier and representation learning (Rebuffi et al., 2017)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from itl.nets import Net
from itl.specialists.base import Batch, Specialist
from itl.specialists.losses import wide
from itl.specialists.model_copies import twin

UNKNOWN = -1e4  # a class without a mean: further away than any (unit vectors are at most 2 apart)


class ICaRL(Specialist):
    """Binary cross-entropy over task and memory as one set of data; what predicts are nearest means.

    For a class of the tasks before the target is what the network answered when the task began, for the task's own it
    is the label (algorithm 3); outputs of classes not taught yet do not count, as in the benchmark's code. A class's
    mean is that of the unit features of its images in memory, and of their mirror images where these mean the same
    (algorithm 1).
    """

    name = "icarl"
    summary = "binary cross-entropy with distillation; nearest class means of the memory predict"
    reference = (
        "Rebuffi, Kolesnikov, Sperl, Lampert: iCaRL: Incremental Classifier and Representation Learning, CVPR 2017"
    )
    defaults = {"memory.policy": "herding", "specialist.lr": 0.1, "specialist.weight_decay": 2e-5}
    stream_defaults = {
        ("seq-cifar10", 200): {"specialist.lr": 0.1},
        ("seq-cifar10", 500): {"specialist.lr": 0.1},
        ("seq-cifar10", 5120): {"specialist.lr": 0.03},
        ("seq-cifar100", None): {"specialist.lr": 0.3},
        ("seq-tinyimagenet", None): {"specialist.lr": 0.03, "specialist.epochs": 100},
    }
    over = "both"
    new_classes = True
    settles = True
    forwards, backwards = 2, 1

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self.means: Tensor | None = None  # [classes, features]; zero for a class without images

    @property
    def draws(self) -> int:
        """The memory's images are among the data."""
        return 0

    def task_starts(self) -> None:
        """Keep the network that knows the tasks before; the new classes have no mean yet."""
        self.means = None
        if self.context.past:
            self.twins["old"] = twin(self.context.net)

    def loss(self, net: nn.Module, now: Batch, pasts: tuple[Batch, ...]) -> Tensor:
        """BCE with q_y = σ(old network) for y ∈ C_past, [y = label] for y ∈ C_task: a mean over batch and C_seen."""
        context, logits = self.context, wide(net(now.x))
        target = F.one_hot(now.y, logits.shape[1]).to(logits.dtype)
        if context.past:
            with torch.no_grad():
                before = torch.sigmoid(wide(self.twins["old"](now.x)))
            target = target.index_copy(1, context.old, before.index_select(1, context.old))
        each = F.binary_cross_entropy_with_logits(logits, target, reduction="none").mean(0)  # [outputs]
        return torch.where(context.taught, each, 0.0).sum() / context.taught.sum()

    @torch.no_grad()
    def task_ends(self) -> None:
        """Take the means of what the memory holds now."""
        context, net = self.context, self.context.net.eval()
        x = context.normalize(context.memory.pixels[: len(context.memory)])
        views = [x, x.flip(3)] if context.augment_memory.flip else [x]
        unit = [torch.cat([F.normalize(wide(net.features(part)), dim=1) for part in view.split(512)]) for view in views]
        members = F.one_hot(torch.from_numpy(context.memory.labels), net.classifier.out_features).to(x)  # [n, classes]
        self.means = F.normalize(members.T @ torch.stack(unit).mean(0), dim=1)

    def logits(self, net: Net, x: Tensor) -> Tensor:
        """−‖φ(x) − μ_y‖² once there are means, the network's own outputs before."""
        if self.means is None:
            return net(x)  # type: ignore[no-any-return]
        unit = F.normalize(wide(net.features(x)), dim=1)
        distance = unit.square().sum(1, keepdim=True) + self.means.square().sum(1) - 2 * unit @ self.means.T
        return torch.where(self.means.any(1), -distance, UNKNOWN)

    def extra_state(self) -> dict[str, Tensor]:
        """The snapshot and the means."""
        return super().extra_state() | ({} if self.means is None else {"means": self.means})

    def restore(self, kept: dict[str, Tensor], net: Net) -> None:
        """Take up both."""
        super().restore(kept, net)
        self.means = kept.get("means")
