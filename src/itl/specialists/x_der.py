"""X-DER: extended dark experience replay (Boschini et al., 2022): updates stored logits and prepares future heads."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from itl.nets import Net, fixed_running_statistics, forward_each
from itl.settings import Rate, Weight
from itl.specialists.base import Batch, Options, Phase, Specialist
from itl.specialists.losses import at_least_float32, cross_entropy, mask_logits, squared_error, supervised_contrast

EVALUATION_BATCH = 512


class XDEROptions(Options):
    """Options of X-DER.

    Attributes:
        gamma: Bound on the logits that are grafted into stored logits.
        consistency: Weight of the contrastive loss that prepares the future heads.
        temperature: Temperature of that loss.
        eta: Weight of the constraints that keep past and future heads below the sample's own.
        margin: Margin of these constraints.
    """

    gamma: Annotated[float, Field(strict=True, gt=0, le=1)] = 0.85
    consistency: Weight = 0.05
    temperature: Rate = 5.0
    eta: Weight = 0.001
    margin: Weight = 0.7


class XDER(Specialist):
    """CE(task) over the task's classes + α ‖p(x) − z‖² + β CE over the past classes + L_future + L_constraints.

    z are the logits stored with an image at the end of its task, which lack the classes of later tasks. The current
    network's outputs for these classes are grafted into z: during training with decreasing probability (1/k at the
    k-th replay) and at every task's end, never above γ times the logit of the image's own class. An image that both
    replay batches contain is updated once and counts once in the constraint on the future heads.

    The terms and their forward passes are those of the authors' code (mammoth, tag tpami2023), with two differences:

    - Logits at the end of a task come from the network in evaluation mode and from the images without augmentation; the
      authors' code uses training mode and augmented images.
    - The future heads use two more augmentations of the task's images and of the first replay batch; the authors' code
      draws and augments images for them separately. As there, their forward pass uses the batch's own statistics and
      does not update the running statistics of batch norm.
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
    stores_logits_at_task_end = True
    requires_new_classes = True
    requires_fixed_classes = True
    num_views = 3
    num_replay_batches = 2  # one batch for the logits, one for the labels
    forward_batches = backward_batches = 7
    count: Tensor  # how often each slot was replayed in this task, [size + 1]

    def on_task_start(self) -> None:
        """Reset the replay counts."""
        self.count = torch.zeros(self.context.memory.size + 1, device=self.context.engine.device)

    def training_phase(self) -> Phase:
        """The usual training; the output columns of each task are tabulated before the first step."""
        context, outputs = self.context, self.context.net.classifier.out_features
        unseen = [c for c in range(outputs) if c not in {*context.past_classes, *context.classes}]
        per_task, send = len(context.classes), context.engine.send
        self.future_heads = [send(torch.tensor(unseen[k : k + per_task])) for k in range(0, len(unseen), per_task)]
        same_task = torch.zeros((outputs, outputs), dtype=torch.bool)  # [class, column of its task]
        for task in context.tasks:
            same_task[torch.tensor(task)[:, None], torch.tensor(task)] = True
        self.same_task = send(same_task)
        return super().training_phase()

    def draw_inputs(self, rng: np.random.Generator, steps: int, first: int) -> dict[str, np.ndarray]:
        """A uniform number for each replayed image, which decides whether its stored logits are updated."""
        return {"chance": rng.random((steps, 2, self.settings.replay), dtype=np.float32)}

    def loss(self, net: nn.Module, batch: Batch, replay_batches: tuple[Batch, ...]) -> Tensor:
        """All terms; replay terms from the second task on, those of the future heads before the last task."""
        s, o, context = self.settings, self.options, self.context
        images = (batch.x, *(replay.x for replay in replay_batches))
        logits, *replay_logits = (at_least_float32(outputs) for outputs in forward_each(net, *images))
        loss = cross_entropy(mask_logits(logits, context.task_mask), batch.y, s.reduction)
        batch.outputs, all_logits, labels = logits.detach(), logits, batch.y
        if replay_batches:
            first, second = replay_batches
            assert first.stored_logits is not None
            loss = loss + s.alpha * squared_error(replay_logits[0], first.stored_logits, s.reduction)
            past_logits = mask_logits(replay_logits[1], context.seen_mask & ~context.task_mask)
            loss = loss + s.beta * cross_entropy(past_logits, second.y, s.reduction)
            loss = loss + o.eta * hinge(self._past_excess(logits) + o.margin)
            self._update_logits(replay_batches, [outputs.detach() for outputs in replay_logits], batch.extra["chance"])
            all_logits, labels = torch.cat([logits, *replay_logits]), torch.cat([batch.y, first.y, second.y])
        if self.future_heads:
            excess = self._future_excess(all_logits, labels) + o.margin
            if replay_batches:
                repeated = same_images(second, first).any(1)
                once, twice = excess.split([len(excess) - len(repeated), len(repeated)])
                excess = torch.cat([once, torch.where(repeated, 0.0, twice)])  # the hinge ignores zeros
            loss = loss + o.eta * hinge(excess)
            loss = loss + o.consistency * self._consistency(net, batch, replay_batches)
        return loss

    def _past_excess(self, logits: Tensor) -> Tensor:
        """By how much the past classes exceed the task's classes on its samples, in probability: `[n]`."""
        task_mask = self.context.task_mask
        probability = mask_logits(logits, self.context.seen_mask).softmax(1)
        past, own = torch.where(task_mask, 0.0, probability), torch.where(task_mask, probability, 0.0)
        return past.amax(1).detach() - own.amax(1)

    def _future_excess(self, logits: Tensor, labels: Tensor) -> Tensor:
        """By how much the future classes exceed the classes of the sample's own task: `[n]`."""
        own = self.same_task.index_select(0, labels)
        return mask_logits(logits, ~self.context.seen_mask).amax(1) - mask_logits(logits, own).amax(1)

    def _consistency(self, net: nn.Module, batch: Batch, replay_batches: tuple[Batch, ...]) -> Tensor:
        """Supervised contrastive loss between the two extra views, averaged over the future heads."""
        batches = (batch, *replay_batches[:1])
        x = torch.cat([b.extra_views[k] for k in (0, 1) for b in batches])
        y = torch.cat([b.y for b in batches]).repeat(2)
        with fixed_running_statistics(net):
            logits = at_least_float32(net(x))
        features = [F.normalize(logits.index_select(1, head), dim=1) for head in self.future_heads]
        return torch.stack([supervised_contrast(f, y, self.options.temperature).mean() for f in features]).mean()

    @torch.no_grad()
    def _update_logits(self, replay_batches: tuple[Batch, ...], replay_logits: list[Tensor], chance: Tensor) -> None:
        """Graft the current outputs for this and later tasks into some of the replayed samples' stored logits."""
        first, second = replay_batches
        match = same_images(second, first)  # an image in both batches is updated once, in the first
        repeated = [torch.zeros_like(first.y, dtype=torch.bool), match.any(1)]
        for replay, outputs, twice, number in zip(replay_batches, replay_logits, repeated, chance, strict=True):
            assert replay.slots is not None
            assert replay.stored_logits is not None
            self.count.index_add_(0, replay.slots, (~twice).to(self.count.dtype))
            chosen = (number[: len(replay.y)] * self.count.index_select(0, replay.slots) < 1) & ~twice
            new = graft(replay.stored_logits, outputs.float(), replay.y, self._open_columns(), self.options.gamma)
            replay.updated_logits = torch.where(chosen[:, None], new, replay.stored_logits)
        assert first.updated_logits is not None
        assert second.updated_logits is not None
        from_first = first.updated_logits.index_select(0, match.float().argmax(1))
        second.updated_logits = torch.where(repeated[1][:, None], from_first, second.updated_logits)

    def _open_columns(self) -> Tensor:
        """Mask of the columns of the current and future tasks, which past samples' stored logits lack."""
        return self.context.task_mask | ~self.context.seen_mask

    @torch.no_grad()
    def on_task_end(self) -> None:
        """Store the logits of the task's samples in memory, and update those of older samples."""
        context, memory, net = self.context, self.context.memory, self.context.net.eval()
        gamma, count = self.options.gamma, len(memory)
        x, y = memory.pixels[:count], torch.from_numpy(memory.labels.copy()).to(memory.pixels.device)
        logits = torch.cat([at_least_float32(net(context.normalize(part))) for part in x.split(EVALUATION_BATCH)])
        assert memory.logits is not None
        new = logits
        if context.past_classes:
            new = graft(logits, logits, y, context.seen_mask & ~context.task_mask, gamma)
        old = graft(memory.logits[:count], logits, y, self._open_columns(), gamma)
        is_new = torch.from_numpy(memory.slots.task[:count] == context.task).to(y.device)
        memory.logits[:count] = torch.where(is_new[:, None], new, old)

    def mutable_tensors(self) -> list[Tensor]:
        """The replay counts."""
        return [self.count]

    def state_dict(self) -> dict[str, Tensor]:
        """The replay counts."""
        return {"count": self.count} if hasattr(self, "count") else {}

    def load_state_dict(self, state: dict[str, Tensor], net: Net) -> None:
        """Restore the replay counts."""
        if "count" in state:
            self.count = state["count"]


def same_images(one: Batch, other: Batch) -> Tensor:
    """Which images of two replay batches are the same: bool `[n, m]`."""
    assert one.slots is not None
    assert other.slots is not None
    return one.slots[:, None] == other.slots


def graft(old: Tensor, new: Tensor, y: Tensor, columns: Tensor, gamma: float) -> Tensor:
    """Logits `old` `[n, classes]` with `columns` (bool `[classes]`) taken from `new`, bounded by the logit of y.

    If the largest of them exceeds the logit of y, all are multiplied by γ · old[y] / largest (eq. 6 of the paper).
    """
    own = old.gather(1, y[:, None])
    largest = mask_logits(new, columns).amax(1, keepdim=True)
    return torch.where(columns, new * torch.where(largest > own, gamma * own / largest, 1.0), old)


def hinge(excess: Tensor) -> Tensor:
    """Mean of the positive values among `[n]`; 0 if there are none."""
    return F.relu(excess).sum() / (excess > 0).sum().clamp(min=1)
