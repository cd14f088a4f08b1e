"""Online selection: slots chosen on the device, within a training step, by what the network computes for the samples.

All random numbers and the slots to replay are planned ahead, as for any other epoch, but the images in the slots are
known only when the step runs. A step therefore augments its replayed images itself. It never waits for the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from itl.engine.device import Engine
from itl.memory.slots import INTEGER_FIELDS, Slots

CHOOSE_ON_DEVICE = -1
"""Sentinel: the slot is chosen on the device."""


class OfferedBatch(NamedTuple):
    """A batch of the task that a step offers to the memory.

    Attributes:
        labels: int64 `[n]`.
        logits: The specialist's logits `[n, classes]`, if it provides them.
        inputs: The step's part of `OnlineSelector.draw_inputs`, each `[n]`.
        extra: Tensors that the specialist provides for its own policy.
    """

    labels: Tensor
    logits: Tensor | None
    inputs: dict[str, Tensor]
    extra: dict[str, Tensor]


class ReplayedBatch(NamedTuple):
    """A batch that the step replayed: its slots `[n]`, labels `[n]`, and logits `[n, classes]` if there are any."""

    slots: Tensor
    labels: Tensor
    logits: Tensor | None


class OnlineSelector:
    """Chooses slots on the device while a task is trained. Subclasses override `choose_slots`.

    `Slots` on the CPU are updated from the selector at the end of an epoch (`copy_to`).

    Args:
        slots: Metadata of the memory at the task's start.
        scores: The memory's scores, float64 `[size + 1]`, one per slot and one for the dummy slot.
        engine: Device and precision.

    Attributes:
        size: Capacity of the memory, which is also the index of the dummy slot.
        slot_fields: Device copies of the integer fields of `Slots`, each int64 `[size + 1]`.
    """

    def __init__(self, slots: Slots, scores: Tensor, engine: Engine) -> None:
        self.size, self.scores, self.engine = slots.size, scores, engine
        self.slot_fields = {
            name: engine.send(torch.from_numpy(np.append(getattr(slots, name), 0).astype(np.int64)))
            for name in INTEGER_FIELDS
        }

    def draw_inputs(self, slots: Slots, targets: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Draw an epoch's step inputs for the offered samples, each `[n]`.

        Args:
            slots: Metadata of the memory at the epoch's start.
            targets: Planned slots `[n]` (see `fill_free_slots`); `slots.size` once the memory is full.
            rng: Generator of all draws.

        Returns:
            `slot`: a slot, the dummy slot to discard the sample, or `CHOOSE_ON_DEVICE`. `slot_draw` and `accept_draw`:
            uniform numbers in [0, 1) for choosing a slot and for accepting the sample.
        """
        count = len(targets)
        return {"slot": targets, "slot_draw": rng.random(count), "accept_draw": rng.random(count)}

    def choose_slots(self, batch: OfferedBatch, replayed: Sequence[ReplayedBatch]) -> Tensor:
        """Slot for each sample of a batch, int64 `[n]`; the dummy slot discards the sample.

        If several samples get the same slot, the last one is kept.
        """
        raise NotImplementedError

    def tensors(self) -> list[Tensor]:
        """Tensors that a step changes, besides the images."""
        return [self.scores, *self.slot_fields.values()]

    def offers(self, slot: Tensor) -> list[tuple[slice, bool]]:
        """Samples of a batch to place, in order, each with whether its slot may have to be chosen.

        On a GPU these are all samples and always True, because reading `slot` would wait for the device.
        """
        if slot.device.type != "cpu":
            return [(slice(k, k + 1), True) for k in range(len(slot))]
        return [
            (slice(k, k + 1), value == CHOOSE_ON_DEVICE) for k, value in enumerate(slot.tolist()) if value != self.size
        ]

    def record_writes(self, targets: Tensor, fields: dict[str, Tensor]) -> Tensor:
        """Update `slot_fields` of slots `targets` `[n]`; returns `targets` with only the last write to each slot."""
        same = targets[:, None] == targets[None, :]
        overwritten = torch.triu(same, diagonal=1).any(1)
        targets = torch.where(overwritten, self.size, targets)
        for name, value in fields.items():
            self.slot_fields[name].index_copy_(0, targets, value)
        return targets

    def copy_to(self, slots: Slots) -> None:
        """Copy the integer fields back to `slots` on the CPU."""
        for name in INTEGER_FIELDS:
            getattr(slots, name)[:] = self.slot_fields[name][: self.size].cpu().numpy()


def fill_free_slots(slots: Slots, labels: np.ndarray) -> np.ndarray:
    """Planned part of an online selection: free slots are filled from the front `[n]`; then `slots.size`."""
    return np.minimum(slots.count + np.arange(len(labels)), slots.size)


def sample_slot(probabilities: Tensor, uniform: Tensor) -> Tensor:
    """Sample indices `[k]` by their probabilities, from uniform numbers in [0, 1) `[k]`."""
    edges = probabilities.double().cumsum(0)
    found = torch.searchsorted(edges / edges[-1], uniform.to(edges.device, torch.float64), right=True)
    return found.clamp(max=len(probabilities) - 1)
