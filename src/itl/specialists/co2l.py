"""Co2L: contrastive continual learning (Cha, Lee, Shin, 2021). Trains features, then a linear classifier on them."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from itl.engine.keyed_random import torch_generator
from itl.engine.stage import OptimizerConfig
from itl.nets import Net, initialize
from itl.settings import Count, Rate, Weight
from itl.specialists.base import Batch, Options, Phase, Specialist
from itl.specialists.losses import at_least_float32, cross_entropy, supervised_contrast
from itl.specialists.model_copies import frozen_copy


class Co2LOptions(Options):
    """Options of Co2L.

    Attributes:
        temperature: Temperature of the contrastive loss.
        now_temperature: Temperature of the current network in the distillation.
        past_temperature: Temperature of the old network in the distillation.
        distil: Weight of the distillation.
        first_epochs: Epochs of the first task; None for as many as for the others.
        warm_epochs: Epochs of the learning rate's linear warm-up.
        width: Outputs of the projection head.
        probe_epochs: Epochs of the linear classifier.
        probe_batch: Batch size of the linear classifier.
        probe_lr: Learning rate of the linear classifier.
    """

    temperature: Rate = 0.5
    now_temperature: Rate = 0.2
    past_temperature: Rate = 0.01
    distil: Weight = 1.0
    first_epochs: Count | None = 500
    warm_epochs: int = 10
    width: Count = 128
    probe_epochs: Count = 100
    probe_batch: Count = 256
    probe_lr: Rate = 1.0


BASE_TEMPERATURE = 0.07  # scales the contrastive loss, as in the authors' code


class Co2L(Specialist):
    """Asymmetric supervised contrast + instance-wise relation distillation on two views of task and memory images.

    The anchors of the contrast are samples of the task's classes; samples of old classes are negatives only (eq. 3).
    The distillation preserves the similarities within a batch that the network had before the task (eq. 6). Both act on
    features after a projection head. Then a new classifier is trained on the frozen features with class-balanced
    sampling. Views are random crops and flips and, if the stream has a policy, AutoAugment; the authors' code also
    resizes crops and jitters colors.
    """

    name = "co2l"
    summary = "contrastive features, distilled relations, then a linear classifier"
    reference = "Cha, Lee, Shin: Co2L: Contrastive Continual Learning, ICCV 2021"
    defaults = {
        "memory.policy": "stratified",
        "augment.task": "stream",
        "augment.memory": "stream",
        "specialist.batch": 512,
        "specialist.lr": 0.5,
        "specialist.momentum": 0.9,
        "specialist.weight_decay": 1e-4,
        "specialist.epochs": 100,
    }
    note = (
        "published for seq-cifar10 with 200 images; augmented by AutoAugment, where the authors' code crops and "
        "jitters colors"
    )
    Options = Co2LOptions
    options: Co2LOptions
    data = "both"
    num_views = 2
    requires_new_classes = True
    num_replay_batches = 0  # the memory's images are part of the training data instead
    forward_batches, backward_batches = 4, 2

    def on_task_start(self) -> None:
        """Copy features and head for the distillation; initialize the classifier, which is trained last."""
        context, first = self.context, not self.context.past_classes
        if first:
            self.head = self._new_head(context.net)
            initialize(self.head, torch_generator(*context.key, "head"))
        else:
            self.model_copies["old"] = frozen_copy(context.net)
            self.old_head = self._new_head(context.net)
            self.old_head.load_state_dict(self.head.state_dict())
        context.net.reinitialize_classifier(torch_generator(*context.key, "probe"))

    def _new_head(self, net: Net) -> nn.Sequential:
        features = net.classifier.in_features
        head = nn.Sequential(nn.Linear(features, features), nn.ReLU(), nn.Linear(features, self.options.width))
        return head.to(net.classifier.weight.device)

    def training_phase(self) -> Phase:
        """Train head and network without classifier: linear warm-up, then cosine decay to a thousandth."""
        phase, options = super().training_phase(), self.options
        epochs = phase.epochs if self.context.past_classes else options.first_epochs or phase.epochs
        trained = {
            n: p for n, p in phase.parameters.items() if not n.startswith(f"{self.context.net.classifier_name}.")
        }
        trained |= {f"head.{n}": p for n, p in self.head.named_parameters()}
        warm_up = min(options.warm_epochs, epochs // 2) / epochs if phase.batch_size > 256 else 0.0

        def curve(k: Tensor, total: int) -> Tensor:
            cosine = 1e-3 + (1 - 1e-3) * 0.5 * (1 + torch.cos(torch.pi * k / total))
            return torch.where(k < warm_up * total, cosine * (k + 1) / (warm_up * total + 1), cosine)

        return replace(phase, epochs=epochs, parameters=trained, optimizer=replace(phase.optimizer, curve=curve))

    def loss(self, net: nn.Module, batch: Batch, replay_batches: tuple[Batch, ...]) -> Tensor:
        """L_asym + λ L_ird."""
        x, y, options, context = torch.cat([batch.x, *batch.extra_views]), batch.y.repeat(2), self.options, self.context
        assert isinstance(net, Net)
        z = F.normalize(at_least_float32(self.head(net.features(x))), dim=1)
        anchors = context.task_mask.index_select(0, y)
        contrast = torch.where(anchors, supervised_contrast(z, y, options.temperature), 0.0)
        loss = contrast.mean() * options.temperature / BASE_TEMPERATURE
        if context.past_classes:
            with torch.no_grad():
                before = F.normalize(at_least_float32(self.old_head(self.model_copies["old"].features(x))), dim=1)
            relation = relations(before, options.past_temperature).exp()
            loss = loss - options.distil * (relation * relations(z, options.now_temperature)).sum(1).mean()
        return loss

    def closing_phase(self) -> Phase:
        """The linear probe: train only the classifier, on features computed in evaluation mode."""
        options, net = self.options, self.context.net
        weights: dict[str, Tensor] = dict(net.classifier.named_parameters(net.classifier_name))
        optimizer = OptimizerConfig(options.probe_lr, momentum=0.9, curve=three_steps)
        return Phase(
            "closing",
            "both",
            options.probe_epochs,
            options.probe_batch,
            optimizer,
            self.probe_loss,
            weights,
            balanced=True,
            training=False,
            replays=False,
        )

    def probe_loss(self, net: nn.Module, batch: Batch, replay_batches: tuple[Batch, ...]) -> Tensor:
        """CE of the classifier on frozen features."""
        assert isinstance(net, Net)
        with torch.no_grad():
            features = net.features(batch.x)
        return cross_entropy(net.classifier(features), batch.y)

    def state_dict(self) -> dict[str, Tensor]:
        """The snapshot and both heads."""
        heads = {name: getattr(self, name) for name in ("head", "old_head") if hasattr(self, name)}
        return super().state_dict() | {f"{n}:{k}": t for n, head in heads.items() for k, t in head.state_dict().items()}

    def load_state_dict(self, state: dict[str, Tensor], net: Net) -> None:
        """Restore the snapshot and both heads."""
        super().load_state_dict(state, net)
        for name in ("head", "old_head"):
            saved = {k.removeprefix(f"{name}:"): t for k, t in state.items() if k.startswith(f"{name}:")}
            if saved:
                setattr(self, name, self._new_head(net))
                getattr(self, name).load_state_dict(saved)


def relations(z: Tensor, temperature: float) -> Tensor:
    """`log p_ij` `[m, m − 1]`: log-softmax of each unit vector's similarities to the others, for z `[m, d]`."""
    m = len(z)
    with torch.autocast(z.device.type, enabled=False):
        similarity = z @ z.T
    off_diagonal = similarity.flatten()[1:].view(m - 1, m + 1)[:, :-1].reshape(m, m - 1)
    return F.log_softmax(off_diagonal / temperature, 1)


def three_steps(k: Tensor, total: int) -> Tensor:
    """Multiply the learning rate by 0.2 after 60, 75 and 90 % of the steps."""
    return 0.2 ** torch.stack([k >= part * total for part in (0.6, 0.75, 0.9)]).sum(0).double()
