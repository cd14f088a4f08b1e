"""X-DER: extended dark experience replay (Boschini et al., 2022): logits are kept up to date, future heads ready."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from itl.nets import Net, forward_each
from itl.settings import Rate, Weight
from itl.specialists.base import Batch, Options, Phase, Specialist
from itl.specialists.losses import among, contrast, cross_entropy, squared_error, wide


class XDEROptions(Options):
    """`gamma` bounds what is grafted into stored logits, `consistency` and its `temperature` prepare the future heads,
    `eta` and `margin` hold past and future heads below the sample's own.
    """

    gamma: Annotated[float, Field(strict=True, gt=0, le=1)] = 0.85
    consistency: Weight = 0.05
    temperature: Rate = 5.0
    eta: Weight = 0.001
    margin: Weight = 0.7


class XDER(Specialist):
    """CE(now) among the task's classes + α ‖p(x) − z‖² + β CE among the past classes + L_future + L_constraints.

    z, the logits stored with an image at its task's end, say nothing of classes that came later: the present network's
    answers for them are grafted in, during training with ever smaller chance (1/k at the k-th replay) and at every
    task's end, never above γ times the image's own class. Views for the future heads are two more of the usual kind of
    the task's images and of the first memory batch; the authors' code draws and augments these apart.
    """

    name = "x-der"
    summary = "dark replay whose logits are kept up to date, with heads for future tasks"
    reference = (
        "Boschini, Bonicelli, Buzzega, Porrello, Calderara: Class-Incremental Continual Learning into the eXtended "
        "DER-verse, TPAMI 2022"
    )
    defaults = {
        "memory.policy": "stratified",
        "memory.logits": True,
        "specialist.lr": 0.03,
        "specialist.alpha": 0.3,
        "specialist.beta": 0.8,
    }
    stream_defaults = {
        ("seq-cifar100", 500): {"specialist.alpha": 0.3, "specialist.beta": 0.8},
        ("seq-cifar100", 2000): {
            "specialist.alpha": 0.6,
            "specialist.beta": 0.9,
            "specialist.options.margin": 0.2,
            "specialist.options.eta": 0.01,
        },
    }
    note = "published for seq-cifar100 with 500 and 2000 images; other streams use the settings for 500"
    Options = XDEROptions
    options: XDEROptions
    stores_logits = True
    logits_at_end = True
    new_classes = True
    fixed_classes = True
    views = 3
    forwards = backwards = 7
    count: Tensor  # how often each slot has been replayed in this task, [size + 1]

    @property
    def draws(self) -> int:
        """One batch for the logits, one for the labels."""
        return 2

    def task_starts(self) -> None:
        """Nothing has been replayed yet."""
        self.count = torch.zeros(self.context.memory.size + 1, device=self.context.engine.device)

    def phase(self) -> Phase:
        """The usual training; which columns belong together is written out before the first step."""
        context, outputs = self.context, self.context.net.classifier.out_features
        later = [c for c in range(outputs) if c not in {*context.past, *context.classes}]
        each, send = len(context.classes), context.engine.send
        self.heads = [send(torch.tensor(later[k : k + each])) for k in range(0, len(later), each)]
        same = torch.zeros((outputs, outputs), dtype=torch.bool)  # [class, column of its task]
        for task in context.tasks:
            same[torch.tensor(task)[:, None], torch.tensor(task)] = True
        self.same_task = send(same)
        return super().phase()

    def inputs(self, rng: np.random.Generator, steps: int, first: int) -> dict[str, np.ndarray]:
        """A number for each replayed image: whether its logits are brought up to date."""
        return {"chance": rng.random((steps, 2, self.settings.replay), dtype=np.float32)}

    def loss(self, net: nn.Module, now: Batch, pasts: tuple[Batch, ...]) -> Tensor:
        """All terms; those of the memory from the second task on, those of the future heads before the last."""
        s, o, context = self.settings, self.options, self.context
        outputs, *replayed = (wide(logits) for logits in forward_each(net, now.x, *(past.x for past in pasts)))
        loss = cross_entropy(among(outputs, context.own), now.y, s.reduction)
        now.said, everything, labels = outputs.detach(), outputs, now.y
        if pasts:
            logits, label = pasts
            assert logits.logits is not None
            loss = loss + s.alpha * squared_error(replayed[0], logits.logits, s.reduction)
            loss = loss + s.beta * cross_entropy(
                among(replayed[1], context.taught & ~context.own), label.y, s.reduction
            )
            loss = loss + o.eta * hinge(self._past_too_high(outputs) + o.margin)
            self._renew(pasts, [logits.detach() for logits in replayed], now.extra["chance"])
            everything, labels = torch.cat([outputs, *replayed]), torch.cat([now.y, logits.y, label.y])
        if self.heads:
            own = self.same_task.index_select(0, labels)
            too_high = among(everything, ~context.taught).amax(1) - among(everything, own).amax(1)
            loss = loss + o.eta * hinge(too_high + o.margin)
            loss = loss + o.consistency * self._consistency(net, now, pasts)
        return loss

    def _past_too_high(self, outputs: Tensor) -> Tensor:
        """By how much the past classes exceed the task's own on its samples, in probability: `[n]`."""
        context, chance = self.context, among(outputs, self.context.taught).softmax(1)
        return torch.where(context.own, 0.0, chance).amax(1).detach() - torch.where(context.own, chance, 0.0).amax(1)

    def _consistency(self, net: nn.Module, now: Batch, pasts: tuple[Batch, ...]) -> Tensor:
        """Supervised contrast of two more views in each future head."""
        shown = (now, *pasts[:1])
        x = torch.cat([view.others[k] for k in (0, 1) for view in shown])
        y = torch.cat([view.y for view in shown]).repeat(2)
        outputs = wide(net(x))
        units = [F.normalize(outputs.index_select(1, head), dim=1) for head in self.heads]
        return torch.stack([contrast(unit, y, self.options.temperature).mean() for unit in units]).mean()

    @torch.no_grad()
    def _renew(self, pasts: tuple[Batch, ...], replayed: list[Tensor], chance: Tensor) -> None:
        """Graft the present answers for this and later tasks into some of the replayed samples' logits."""
        first, second = pasts
        assert first.slots is not None
        assert second.slots is not None
        match = second.slots[:, None] == first.slots  # an image in both batches counts once, as the first's
        again = [torch.zeros_like(first.slots, dtype=torch.bool), match.any(1)]
        for past, outputs, twice, number in zip(pasts, replayed, again, chance, strict=True):
            assert past.slots is not None
            assert past.logits is not None
            self.count.index_add_(0, past.slots, (~twice).to(self.count.dtype))
            chosen = (number[: len(past.y)] * self.count.index_select(0, past.slots) < 1) & ~twice
            new = graft(past.logits, outputs.float(), past.y, self._open(), self.options.gamma)
            past.renewed = torch.where(chosen[:, None], new, past.logits)
        assert first.renewed is not None
        assert second.renewed is not None
        theirs = first.renewed.index_select(0, match.float().argmax(1))
        second.renewed = torch.where(again[1][:, None], theirs, second.renewed)

    def _open(self) -> Tensor:
        """The columns of this task and of those to come: what samples of past tasks know nothing of."""
        return self.context.own | ~self.context.taught

    @torch.no_grad()
    def task_ends(self) -> None:
        """Store the logits of what the memory has taken, and bring the others' up to date."""
        memory, net, gamma = self.context.memory, self.context.net.eval(), self.options.gamma
        held = len(memory)
        x, y = memory.pixels[:held], torch.from_numpy(memory.labels.copy()).to(memory.pixels.device)
        outputs = torch.cat([wide(net(self.context.normalize(part))) for part in x.split(512)])
        assert memory.logits is not None
        fresh = (
            graft(outputs, outputs, y, self.context.taught & ~self.context.own, gamma) if self.context.past else outputs
        )
        older = graft(memory.logits[:held], outputs, y, self._open(), gamma)
        ours = torch.from_numpy(memory.slots.task[:held] == self.context.task).to(y.device)
        memory.logits[:held] = torch.where(ours[:, None], fresh, older)

    def changed(self) -> list[Tensor]:
        """How often each slot was replayed."""
        return [self.count]

    def extra_state(self) -> dict[str, Tensor]:
        """The same."""
        return {"count": self.count} if hasattr(self, "count") else {}

    def restore(self, kept: dict[str, Tensor], net: Net) -> None:
        """Take it up."""
        if "count" in kept:
            self.count = kept["count"]


def graft(old: Tensor, new: Tensor, y: Tensor, columns: Tensor, gamma: float) -> Tensor:
    """The logits `old` `[n, classes]` with `columns` (bool `[classes]`) from `new`, scaled where they outdo y's own.

    Where the largest of them exceeds the logit of y, all are multiplied by γ · old[y] / largest (eq. 6 of the paper).
    """
    own = old.gather(1, y[:, None])
    top = among(new, columns).amax(1, keepdim=True)
    return torch.where(columns, new * torch.where(top > own, gamma * own / top, 1.0), old)


def hinge(excess: Tensor) -> Tensor:
    """The mean of the positive ones of `[n]` values, 0 if there is none."""
    return F.relu(excess).sum() / (excess > 0).sum().clamp(min=1)
