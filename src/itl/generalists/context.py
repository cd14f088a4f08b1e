"""The inputs of a generalist stage (memory, settings, augmentation) and its loss on the memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from itl.augment import Augment
from itl.engine.device import Engine
from itl.engine.keyed_random import Key
from itl.engine.stage import StepInputs
from itl.memory import Memory
from itl.settings import Settings, TangentSettings
from itl.specialists.losses import cross_entropy, normalize_weights, squared_error


@dataclass(frozen=True)
class MemoryContext:
    """What a generalist learns from.

    Attributes:
        memory: The memory, after its update with the task.
        augment: Augmentation of the memory's images.
        normalize: Maps uint8 images, or references to their features, to the network's input.
        engine: Device and precision.
        key: (seed, task from 1), which begins the key of every random draw.
        settings: All settings of the learner.
    """

    memory: Memory
    augment: Augment
    normalize: Callable[[Tensor], Tensor]
    engine: Engine
    key: Key
    settings: Settings


class MemoryTargets:
    """Labels of the memory's images and, where it has them, their stored logits and weights, on the device.

    Args:
        context: What the generalist learns from.
    """

    def __init__(self, context: MemoryContext) -> None:
        memory, self.engine = context.memory, context.engine
        self.labels, self.widths, self.weights = (
            self.engine.send(torch.from_numpy(values.copy()))
            for values in (memory.slots.label, memory.slots.width, memory.slots.weight)
        )
        self.logits = memory.logits if context.settings.tangent.alpha else None
        self.is_weighted = memory.weighted

    def __call__(self, rows: Tensor) -> StepInputs:
        """`y` of the rows `[n]`, and stored `logits` with their `width`, and `weight`: inputs of `memory_loss`."""
        rows = self.engine.send(rows)
        out = {"y": self.labels.index_select(0, rows)}
        if self.logits is not None:
            out["logits"] = self.logits.index_select(0, rows)
            out["width"] = self.widths.index_select(0, rows)
        if self.is_weighted:
            out["weight"] = self.weights.index_select(0, rows)
        return out


def memory_loss(logits: Tensor, batch: StepInputs, settings: TangentSettings) -> Tensor:
    """β CE(g, y) + α ‖g − z‖², the second term if logits z are stored; the optimizer adds λ‖w‖².

    Args:
        logits: Predictions g, `[n, classes]`.
        batch: Labels `y` `[n]`; optionally stored `logits` `[n, classes]` with their `width` `[n]`, and `weight` `[n]`.
        settings: α, β and the reduction.
    """
    weights = normalize_weights(batch.get("weight"))
    loss = cross_entropy(logits, batch["y"], settings.reduction, weights)
    if settings.beta != 1.0:
        loss = settings.beta * loss
    if "logits" in batch:
        error = squared_error(logits, batch["logits"], settings.reduction, batch["width"], weights)
        loss = loss + settings.alpha * error
    return loss
