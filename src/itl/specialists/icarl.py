"""iCaRL: incremental classifier and representation learning (Rebuffi et al., 2017)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from itl.nets import Net
from itl.settings import SpecialistSettings
from itl.specialists.base import Batch, Specialist
from itl.specialists.losses import at_least_float32
from itl.specialists.model_copies import frozen_copy

NO_MEAN = -1e4  # logit of a class without mean: below any other (unit vectors are at most 2 apart)
EVALUATION_BATCH = 512


class ICaRL(Specialist):
    """Binary cross-entropy over task and memory as one dataset; classification by the nearest class mean.

    The target for a class of a previous task is the output that the network had when the task began; for the task's
    classes it is the label (algorithm 3). Outputs of unseen classes do not count, as in the benchmark (mammoth) before
    its commit eec9466 of November 2024; since then they count with the target 0. A class mean is the mean of the
    normalized features of the class's images in memory, and of their mirror images if the stream's augmentation flips
    (algorithm 1); the benchmark normalizes and mirrors since that commit.
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
    data = "both"
    requires_new_classes = True
    changes_model_at_task_end = True
    num_replay_batches = 0  # the memory's images are part of the training data instead
    forward_batches, backward_batches = 2, 1

    def __init__(self, settings: SpecialistSettings) -> None:
        super().__init__(settings)
        self.means: Tensor | None = None  # [classes, features]; zero for a class without images

    def on_task_start(self) -> None:
        """Copy the network for the targets of previous classes; discard the means, which lack the new classes."""
        self.means = None
        if self.context.past_classes:
            self.model_copies["old"] = frozen_copy(self.context.net)

    def loss(self, net: nn.Module, batch: Batch, replay_batches: tuple[Batch, ...]) -> Tensor:
        """BCE with q_y = σ(old network) for y ∈ C_past, [y = label] for y ∈ C_task: a mean over batch and C_seen."""
        context, logits = self.context, at_least_float32(net(batch.x))
        target = F.one_hot(batch.y, logits.shape[1]).to(logits.dtype)
        if context.past_classes:
            with torch.no_grad():
                before = torch.sigmoid(at_least_float32(self.model_copies["old"](batch.x)))
            target = target.index_copy(1, context.past_columns, before.index_select(1, context.past_columns))
        per_output = F.binary_cross_entropy_with_logits(logits, target, reduction="none").mean(0)
        return torch.where(context.seen_mask, per_output, 0.0).sum() / context.seen_mask.sum()

    @torch.no_grad()
    def on_task_end(self) -> None:
        """Compute the class means of the images in memory."""
        context, net = self.context, self.context.net.eval()
        x = context.normalize(context.memory.pixels[: len(context.memory)])
        views = [x, x.flip(3)] if context.augment_memory.flip else [x]
        features = [
            torch.cat(
                [F.normalize(at_least_float32(net.features(part)), dim=1) for part in view.split(EVALUATION_BATCH)]
            )
            for view in views
        ]
        members = F.one_hot(torch.from_numpy(context.memory.labels), net.classifier.out_features).to(x)  # [n, classes]
        self.means = F.normalize(members.T @ torch.stack(features).mean(0), dim=1)

    def evaluate_logits(self, net: Net, x: Tensor) -> Tensor:
        """−‖φ(x) − μ_y‖² if the means are known, else the network's logits."""
        if self.means is None:
            return net(x)  # type: ignore[no-any-return]
        features = F.normalize(at_least_float32(net.features(x)), dim=1)
        distance = features.square().sum(1, keepdim=True) + self.means.square().sum(1) - 2 * features @ self.means.T
        return torch.where(self.means.any(1), -distance, NO_MEAN)

    def state_dict(self) -> dict[str, Tensor]:
        """The snapshot and the means."""
        return super().state_dict() | ({} if self.means is None else {"means": self.means})

    def load_state_dict(self, state: dict[str, Tensor], net: Net) -> None:
        """Restore the snapshot and the means."""
        super().load_state_dict(state, net)
        self.means = state.get("means")
