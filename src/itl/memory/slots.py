"""Metadata of the memory's slots (class, task, row, step of writing) as NumPy arrays on the CPU."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from itl.errors import UserError

EMPTY = -1
MAX_SIZE = 10_000_000
INTEGER_FIELDS = ("label", "task", "row", "written", "width")
"""The int64 arrays of `Slots`. They are saved under these names, and online selectors keep copies on the device."""


@dataclass
class Slots:
    """Metadata of a memory of fixed size, one entry per slot. Slots are filled from the front.

    Attributes:
        label: Output column of the image's class, int64 `[size]`; -1 in empty slots, as in the other int64 arrays.
        task: Index of the task that the image came from, int64 `[size]`.
        row: Row of the image in that task's training data, int64 `[size]`.
        written: Training step (counted over the whole run) at which the slot was written, int64 `[size]`.
        width: Number of outputs of the network at that step, int64 `[size]`.
        weight: Weight of the image in a loss, float32 `[size]`.
        count: Number of filled slots.
        seen: Number of samples offered to the memory so far, which reservoir sampling needs.
        step: Number of training steps so far.
    """

    label: np.ndarray
    task: np.ndarray
    row: np.ndarray
    written: np.ndarray
    width: np.ndarray
    weight: np.ndarray
    count: int = 0
    seen: int = 0
    step: int = 0

    @classmethod
    def empty(cls, size: int) -> Slots:
        """Slots of an empty memory."""
        if size > MAX_SIZE:
            raise UserError(f"a memory of {size} images is too large; choose a buffer of at most {MAX_SIZE}")
        label, task, row, written, width = (np.full(size, EMPTY, np.int64) for _ in INTEGER_FIELDS)
        return cls(label, task, row, written, width, np.ones(size, np.float32))

    @property
    def size(self) -> int:
        """Capacity of the memory in images."""
        return len(self.label)

    def copy(self) -> Slots:
        """A deep copy."""
        arrays: dict[str, Any] = {name: array.copy() for name, array in self._arrays().items()}
        return replace(self, **arrays)

    def grown(self, size: int) -> Slots:
        """A copy with capacity `size`; the filled slots keep their positions."""
        added = Slots.empty(size - self.size)
        joined: dict[str, Any] = {
            name: np.concatenate([array, getattr(added, name)]) for name, array in self._arrays().items()
        }
        return replace(self, **joined)

    def keep(self, kept: np.ndarray, size: int) -> Slots:
        """A copy with capacity `size` that holds only the slots `kept`, moved to the front in this order."""
        out = Slots.empty(size)
        for name, array in self._arrays().items():
            getattr(out, name)[: len(kept)] = array[kept]
        return replace(out, count=len(kept), seen=self.seen, step=self.step)

    def classes(self) -> np.ndarray:
        """The classes in memory, ascending."""
        return np.unique(self.label[: self.count])

    def of_class(self, label: int) -> np.ndarray:
        """The filled slots that hold images of class `label`."""
        return np.flatnonzero(self.label[: self.count] == label)

    def write(self, slots: np.ndarray, label: np.ndarray, task: int, rows: np.ndarray, width: int) -> None:
        """Record that `slots` (all different) now hold the images `rows` of `task`, written at the current step."""
        self.label[slots], self.task[slots], self.row[slots] = label, task, rows
        self.written[slots], self.width[slots], self.weight[slots] = self.step, width, 1.0
        self.count = max(self.count, int(slots.max(initial=EMPTY)) + 1)

    def _arrays(self) -> dict[str, np.ndarray]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, np.ndarray)}


def last_write_per_slot(targets: np.ndarray, dummy: int) -> np.ndarray:
    """`targets` `[batch]` with all but the last write to each slot redirected to the slot `dummy`.

    The writes of a batch happen at once on the device, where the order of writes to one address is undefined.
    """
    out = targets.copy()
    _, first_from_end = np.unique(out[::-1], return_index=True)
    last = np.zeros(len(out), bool)
    last[len(out) - 1 - first_from_end] = True
    out[~last] = dummy
    return out
