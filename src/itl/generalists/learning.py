"""The generalist's own learning on the memory: along the tangent plane, or by the ablation's fine-tuning."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from itl.augment import Augment
from itl.engine.concurrency import side_stream
from itl.engine.device import Engine
from itl.engine.keyed_random import Key
from itl.engine.normalize import Normalize
from itl.engine.stage import OptimizerConfig, Stage, StepInputs
from itl.generalists.epochs import SampleRoundPlanner, in_parts, joined, parts_of
from itl.generalists.tangent_model import TangentModel, frozen_copy
from itl.memory import Memory
from itl.nets import Net
from itl.settings import OnMemory, Settings, TangentSettings
from itl.specialists.losses import cross_entropy, shares, squared_error

VALUE = "value."  # in a step's inputs, before a convolution's name
AHEAD = 8  # steps of tangent learning whose values must fit in the engine's budget, for them to be computed ahead


@dataclass(frozen=True)
class MemoryContext:
    """What a generalist stands on: the memory, its augmentation, the images' normalisation, the key of its draws."""

    memory: Memory
    augment: Augment
    normalize: Normalize
    engine: Engine
    key: Key
    settings: Settings


class Generalist(Protocol):
    """One way to learn from the memory at a task's end."""

    stage: Stage

    def logits(self, x: Tensor) -> Tensor:
        """What the generalist predicts for normalised images `[n, c, h, w]`: `[n, classes]`."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """What must be kept to go on from here: the learned part and the point it is anchored to."""
        ...


def memory_rounds(
    ground: MemoryContext, name: str, prepare: Callable[[Tensor], StepInputs], weight: int
) -> SampleRoundPlanner:
    """Rounds over the memory for the stage called `name`, with the labels (and logits, where stored) of its slots."""
    memory, settings, engine = ground.memory, ground.settings.tangent, ground.engine
    labels = engine.send(torch.from_numpy(memory.slots.label.copy()))
    widths = engine.send(torch.from_numpy(memory.slots.width.copy()))
    weights = engine.send(torch.from_numpy(memory.slots.weight.copy()))

    def inputs(views: Tensor, rows: Tensor) -> StepInputs:
        rows = engine.send(rows)
        out = {**prepare(views), "y": labels.index_select(0, rows)}
        if memory.logits is not None and settings.alpha:
            out["logits"] = memory.logits.index_select(0, rows)
            out["width"] = widths.index_select(0, rows)
        if memory.weighted:
            out["weight"] = weights.index_select(0, rows)
        return out

    return SampleRoundPlanner(
        memory,
        len(memory),
        settings.epochs,
        settings.steps,
        settings.batch,
        (*ground.key, name),
        ground.augment,
        inputs,
        weight,
        engine,
    )


def memory_loss(logits: Tensor, batch: StepInputs, settings: TangentSettings) -> Tensor:
    """β CE(g, y) + α ‖g − b‖² (the second where logits are stored); λ‖w‖² is the optimiser's."""
    weights = shares(batch.get("weight"))
    loss = cross_entropy(logits, batch["y"], settings.reduction, weights)
    if settings.beta != 1.0:
        loss = settings.beta * loss
    if "logits" in batch:
        error = squared_error(logits, batch["logits"], settings.reduction, batch["width"], weights)
        loss = loss + settings.alpha * error
    return loss


def optimizer(settings: OnMemory) -> OptimizerConfig:
    """How a stage on the memory descends."""
    return OptimizerConfig(settings.lr, settings.momentum, settings.l2, settings.schedule)


def shapes(net: nn.Module) -> dict[str, torch.Size]:
    """Of everything in a network's state."""
    return {name: t.shape for name, t in net.state_dict().items()}


class Tangent:
    """Tangent learning: minimise over w at the fixed point θ, which stays untouched (Algorithm 1, lines 9 and 10).

    Where a network of the same shapes was linearised before, θ and w take its place in memory, and the step goes on
    with what was captured there.
    """

    anchor: nn.Module
    w: dict[str, Tensor]
    ahead: bool  # whether a step's values are computed ahead of it

    def __init__(self, net: Net, ground: MemoryContext, before: Generalist | None = None) -> None:
        settings, self.ground, self.engine = ground.settings.tangent, ground, ground.engine
        last = before if isinstance(before, Tangent) and before.fits(net, ground) else None
        if last is None:
            self.anchor = frozen_copy(net)
        else:
            self.anchor = last.anchor
            self.anchor.load_state_dict(net.state_dict())
        self.model = TangentModel(self.anchor, settings.layers)  # type: ignore[arg-type]
        if self.engine.uses_triton and self.engine.precision == "bf16" and not self.engine.exact:
            self.model.freeze(torch.bfloat16)
        if last is None:
            self.w = {name: t.requires_grad_() for name, t in self.model.zero().items()}
        else:
            self.w = last.w
            with torch.no_grad():
                torch._foreach_zero_(list(self.w.values()))

        with torch.no_grad():
            sample = self.model.features(ground.normalize(ground.memory.pixels[:1]))
        values = self.model.values(sample) if self.engine.uses_triton and self.model.written_out else {}
        more = 4 * sum(t.numel() for t in values.values())
        # Without the values the chain of a step is half as long, and the convolutions with w can go beside it.
        self.ahead = 0 < AHEAD * settings.batch * more <= self.engine.input_bytes
        if self.ahead:
            self.model.side_stream = side_stream(self.engine.device, self.engine.capture)

        def loss(batch: StepInputs) -> Tensor:
            h, known = batch["h"], None
            if self.ahead:
                h, known = self.engine.from_storage(h), {n: self.engine.from_storage(batch[VALUE + n]) for n in values}
            return memory_loss(self.model.logits(self.w, h, known), batch, settings)

        rounds = memory_rounds(ground, "tangent", self._prepare, 4 * sample.numel() + self.ahead * more)
        self.stage = Stage(
            "tangent", dict(self.w), optimizer(settings), rounds, loss, autocast=False, cache_key=settings
        )

    def fits(self, net: Net, ground: MemoryContext) -> bool:
        """Whether another network can be linearised in the place of this one."""
        alike = ground.settings.tangent == self.ground.settings.tangent and ground.engine is self.engine
        return net.supports_fused_paths and alike and shapes(self.anchor) == shapes(net)

    def _prepare(self, views: Tensor) -> StepInputs:
        """The trunk's features of views, `h`; where planned, the head's values too: all with channels last then."""
        with self.engine.autocast():  # the trunk is frozen and no part of the tangent plane
            h = in_parts(lambda part: self.model.features(self.ground.normalize(part)), views)
        if not self.ahead:
            return {"h": h}
        parts = [{"": part, **self.model.values(part)} for part in parts_of(h)]
        whole = {n: joined([self.engine.to_storage(part[n]) for part in parts]) for n in parts[0]}
        return {"h": whole.pop(""), **{VALUE + n: t for n, t in whole.items()}}

    @torch.no_grad()
    def logits(self, x: Tensor) -> Tensor:
        """g(w; x) of normalised images: `[n, classes]`, the trunk as in training."""
        with self.engine.autocast():
            features = self.model.features(x).float()
        return self.model.logits(self.w, features)

    def tensors(self) -> dict[str, Tensor]:
        """w and θ."""
        anchor = {f"anchor.{name}": t for name, t in self.anchor.state_dict().items()}
        return {**{f"w.{name}": t.detach() for name, t in self.w.items()}, **anchor}


class FineTuning:
    """The ablation's ways: fine-tune all of `net` on the memory (`full`), or its classifier alone (`linear`).

    `net` is trained itself; for a projection the caller passes a copy.
    """

    def __init__(self, net: Net, ground: MemoryContext, linear: bool) -> None:
        settings = ground.settings.tangent
        self.net, self.cloned, self.engine = net, ground.settings.projects, ground.engine
        name = "linear" if linear else "full"
        net.train(not linear and settings.batch_norm == "train")

        def features(views: Tensor) -> StepInputs:
            with torch.no_grad(), ground.engine.autocast():
                return {"h": in_parts(lambda part: net.features(ground.normalize(part)), views)}

        def loss(batch: StepInputs) -> Tensor:
            logits = net.classifier(batch["h"]) if linear else net(ground.normalize(batch["h"]))
            return memory_loss(logits, batch, settings)

        image = ground.memory.pixels[0].numel()
        prepare = features if linear else (lambda views: {"h": views})
        rounds = memory_rounds(ground, name, prepare, 4 * net.classifier.in_features if linear else image)
        trained = net.classifier.named_parameters("classifier") if linear else net.named_parameters()
        changed = [] if linear else list(net.buffers())
        trunk = None if linear else net
        self.stage = Stage(name, dict(trained), optimizer(settings), rounds, loss, changed, net=trunk)

    @torch.no_grad()
    def logits(self, x: Tensor) -> Tensor:
        """The fine-tuned network's logits, in evaluation mode, in the precision it is trained in."""
        training = self.net.training
        with self.engine.autocast():
            out: Tensor = self.net.eval()(x)
        self.net.train(training)
        return out

    def tensors(self) -> dict[str, Tensor]:
        """The fine-tuned network."""
        return {f"clone.{name}": t for name, t in self.net.state_dict().items()} if self.cloned else {}


def build(net: Net, ground: MemoryContext, before: Generalist | None = None) -> Generalist:
    """The generalist that the settings name, at the network's present (half-piped) weights; `before` was the last."""
    settings = ground.settings
    if settings.generalist == "tangent":
        return Tangent(net, ground, before)
    subject = copy.deepcopy(net) if settings.projects else net
    return FineTuning(subject, ground, settings.generalist == "linear")


def restore(net: Net, ground: MemoryContext, kept: dict[str, Tensor]) -> Generalist:
    """The generalist as `tensors` gave it to be kept, in the middle of its stage or after it."""
    anchor = {name.partition(".")[2]: t for name, t in kept.items() if name.startswith(("anchor.", "clone."))}
    if not anchor:
        return build(net, ground)  # fine-tuning of the network itself: its state is the network's
    twin = copy.deepcopy(net)
    twin.load_state_dict(anchor)
    if ground.settings.generalist != "tangent":
        return FineTuning(twin, ground, ground.settings.generalist == "linear")
    generalist = Tangent(twin, ground)
    with torch.no_grad():
        for name, w in generalist.w.items():
            w.copy_(kept[f"w.{name}"])
    return generalist
