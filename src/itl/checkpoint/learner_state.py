"""State of a learner as tensors and JSON data, which a model folder stores without pickle."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from itl.checkpoint import store
from itl.memory import Memory, Slots
from itl.memory.buffer import OPTIONAL_TENSORS
from itl.memory.slots import INTEGER_FIELDS


@dataclass
class LearnerState:
    """Everything needed to continue a learner.

    Attributes:
        tensors: Tensors by name: `net.*`, `flight.*` (the unfinished stage), `specialist.*`, `memory.*` and `slots.*`.
        metadata: JSON data: arguments, settings, position, counters, timings and notes.
    """

    tensors: dict[str, Tensor]
    metadata: dict[str, Any]

    @classmethod
    def read(cls, folder: str | os.PathLike[str], size_limit: store.SizeLimit | None = None) -> LearnerState:
        """Read the state from a model folder and verify its checksums.

        Args:
            folder: The model folder.
            size_limit: As in `store.read_generation`.

        Raises:
            UserError: The folder is not a model folder, is damaged or cannot be read.
        """
        return cls(*store.read(folder, size_limit))

    def write(self, folder: str | os.PathLike[str]) -> None:
        """Write the state as the new current generation of a model folder.

        Raises:
            UserError: The folder cannot be written. Its content is unchanged.
        """
        store.write(folder, self.tensors, self.metadata)

    def group(self, prefix: str) -> dict[str, Tensor]:
        """Tensors whose names start with `prefix`, by their names without it."""
        return {name.removeprefix(prefix): t for name, t in self.tensors.items() if name.startswith(prefix)}


def memory_tensors(memory: Memory) -> dict[str, Tensor]:
    """Tensors of a memory to checkpoint."""
    slots = memory.slots
    tensors = {"memory.pixels": memory.pixels[: slots.size]}
    for name in OPTIONAL_TENSORS:
        if getattr(memory, name) is not None:
            tensors[f"memory.{name}"] = getattr(memory, name)[: slots.size]
    return tensors | {f"slots.{name}": torch.from_numpy(getattr(slots, name)) for name in (*INTEGER_FIELDS, "weight")}


def restore_memory(memory: Memory, state: LearnerState) -> None:
    """Copy the saved tensors and counters into a memory of the same size.

    Raises:
        ValueError: A tensor has a wrong shape, or the counters contradict the tensors.
    """
    tensors, values = state.tensors, state.metadata
    _copy(memory.pixels[: memory.size], tensors["memory.pixels"], "memory.pixels")
    if "memory.edits" in tensors:
        memory.edits = torch.zeros(memory.pixels.shape, device=memory.pixels.device)
    for name in OPTIONAL_TENSORS:
        if getattr(memory, name) is not None:
            _copy(getattr(memory, name)[: memory.size], tensors[f"memory.{name}"], f"memory.{name}")
    slots: dict[str, Any] = {name: int(value) for name, value in values["slots"].items()}
    slots["step"] = slots.pop("clock")  # the key in saved folders
    for name in INTEGER_FIELDS:
        array = torch.empty(memory.size, dtype=torch.int64)
        _copy(array, tensors[f"slots.{name}"], f"slots.{name}")
        slots[name] = array.numpy()
    slots["weight"] = np.ones(memory.size, np.float32)  # for folders that were saved before memories had weights
    if "slots.weight" in tensors:
        _copy(torch.from_numpy(slots["weight"]), tensors["slots.weight"], "slots.weight")
    memory.slots = Slots(**slots)
    if not 0 <= memory.slots.count <= memory.size or min(memory.slots.seen, memory.slots.step) < 0:
        raise ValueError(f"the memory counts {memory.slots.count} images and has {memory.size} slots")
    if len(memory.labels) and not 0 <= memory.labels.min() <= memory.labels.max() < values["outputs"]:
        raise ValueError(f"the memory has images of classes beyond the {values['outputs']} outputs")


def _copy(target: Tensor, saved: Tensor, name: str) -> None:
    """Copy a saved tensor; a tensor of another shape is rejected, which `copy_` alone would broadcast."""
    if saved.shape != target.shape:
        raise ValueError(f"{name} has the shape {list(saved.shape)}, not {list(target.shape)}")
    target.copy_(saved)
