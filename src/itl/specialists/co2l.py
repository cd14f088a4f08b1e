"""Co2L: contrastive continual learning (Cha, Lee, Shin, 2021). Features first, then a linear classifier on them."""

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
from itl.specialists.losses import contrast, cross_entropy, wide
from itl.specialists.model_copies import twin


class Co2LOptions(Options):
    """`temperature` of the contrast, `now_` and `past_temperature` of the two sides of the distillation, which `distil`
    weighs. `first_epochs`: of the first task (null: as of the others). `width` of the projection head's output.
    `probe_*`: the linear classifier's training.
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


BASE = 0.07  # the temperature that scales the contrastive loss, as in the authors' code


class Co2L(Specialist):
    """Asymmetric supervised contrast + instance-wise relation distillation over two views of task and memory.

    Anchors of the contrast are the task's own classes; samples of old classes only stand against them (eq. 3). The
    distillation keeps the similarities within a batch as the network before the task saw them (eq. 6). Both look at
    features through a projection head. Then a classifier is drawn and trained on the frozen features, every class as
    often. Views are crops, mirrored and, where the stream has a policy for it, AutoAugmented; the authors' code also
    resizes crops and changes colours.
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
    over = "both"
    views = 2
    new_classes = True
    forwards, backwards = 4, 2

    @property
    def draws(self) -> int:
        """The memory's images are among the data."""
        return 0

    def task_starts(self) -> None:
        """Keep features and head as they are; draw the classifier, which is not trained until the features are."""
        context, first = self.context, not self.context.past
        if first:
            self.head = self._build(context.net)
            initialize(self.head, torch_generator(*context.key, "head"))
        else:
            self.twins["old"] = twin(context.net)
            self.old_head = self._build(context.net)
            self.old_head.load_state_dict(self.head.state_dict())
        context.net.reinitialize_classifier(torch_generator(*context.key, "probe"))

    def _build(self, net: Net) -> nn.Sequential:
        features = net.classifier.in_features
        head = nn.Sequential(nn.Linear(features, features), nn.ReLU(), nn.Linear(features, self.options.width))
        return head.to(net.classifier.weight.device)

    def phase(self) -> Phase:
        """All of the network but its classifier, and the head; warm-up, then a cosine down to a thousandth."""
        usual, options = super().phase(), self.options
        epochs = usual.epochs if self.context.past else options.first_epochs or usual.epochs
        trained = {
            n: p for n, p in usual.parameters.items() if not n.startswith(f"{self.context.net.classifier_name}.")
        }
        trained |= {f"head.{n}": p for n, p in self.head.named_parameters()}
        warm = min(options.warm_epochs, epochs // 2) / epochs if usual.batch > 256 else 0.0

        def curve(k: Tensor, total: int) -> Tensor:
            down = 1e-3 + (1 - 1e-3) * 0.5 * (1 + torch.cos(torch.pi * k / total))
            return torch.where(k < warm * total, down * (k + 1) / (warm * total + 1), down)

        return replace(usual, epochs=epochs, parameters=trained, optimizer=replace(usual.optimizer, curve=curve))

    def loss(self, net: nn.Module, now: Batch, pasts: tuple[Batch, ...]) -> Tensor:
        """L_asym + λ L_ird."""
        x, y, options, context = torch.cat([now.x, *now.others]), now.y.repeat(2), self.options, self.context
        assert isinstance(net, Net)
        z = F.normalize(wide(self.head(net.features(x))), dim=1)
        ours = context.own.index_select(0, y)  # anchors: the task's own classes
        loss = torch.where(ours, contrast(z, y, options.temperature), 0.0).mean() * options.temperature / BASE
        if context.past:
            with torch.no_grad():
                before = F.normalize(wide(self.old_head(self.twins["old"].features(x))), dim=1)
            relation = relations(before, options.past_temperature).exp()
            loss = loss - options.distil * (relation * relations(z, options.now_temperature)).sum(1).mean()
        return loss

    def closing(self) -> Phase:
        """The linear probe: the classifier alone, on the features of evaluation mode."""
        options, net = self.options, self.context.net
        weights: dict[str, Tensor] = dict(net.classifier.named_parameters(net.classifier_name))
        optimizer = OptimizerConfig(options.probe_lr, momentum=0.9, curve=three_steps)
        form = (options.probe_epochs, options.probe_batch, optimizer, self.probe)
        return Phase("closing", "both", *form, weights, balanced=True, training=False, replays=False)

    def probe(self, net: nn.Module, now: Batch, pasts: tuple[Batch, ...]) -> Tensor:
        """CE of the classifier on features that nothing trains."""
        assert isinstance(net, Net)
        with torch.no_grad():
            features = net.features(now.x)
        return cross_entropy(net.classifier(features), now.y)

    def extra_state(self) -> dict[str, Tensor]:
        """The snapshot and both heads."""
        heads = {name: getattr(self, name) for name in ("head", "old_head") if hasattr(self, name)}
        return super().extra_state() | {
            f"{n}:{k}": t for n, head in heads.items() for k, t in head.state_dict().items()
        }

    def restore(self, kept: dict[str, Tensor], net: Net) -> None:
        """Take them up."""
        super().restore(kept, net)
        for name in ("head", "old_head"):
            state = {k.removeprefix(f"{name}:"): t for k, t in kept.items() if k.startswith(f"{name}:")}
            if state:
                setattr(self, name, self._build(net))
                getattr(self, name).load_state_dict(state)


def relations(z: Tensor, temperature: float) -> Tensor:
    """log p_ij: how alike unit vectors `[m, d]` are, as each one's distribution over the m − 1 others: `[m, m − 1]`."""
    m = len(z)
    with torch.autocast(z.device.type, enabled=False):
        alike = z @ z.T
    others = alike.flatten()[1:].view(m - 1, m + 1)[:, :-1].reshape(m, m - 1)  # without the diagonal
    return F.log_softmax(others / temperature, 1)


def three_steps(k: Tensor, total: int) -> Tensor:
    """A fifth at 60, 75 and 90 % of the way."""
    return 0.2 ** torch.stack([k >= part * total for part in (0.6, 0.75, 0.9)]).sum(0).double()
