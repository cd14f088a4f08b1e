"""What the memory knows of each of its slots: class, task, row, when it was written. Plain arrays on the CPU."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from itl.errors import UserError

EMPTY = -1
MOST = 10_000_000  # images: beyond it is a slip of the finger, not a memory


@dataclass
class Slots:
    """One entry for each slot of a memory of fixed size; filled from the front.

    `label` is the class's output column, `task` the task it came with, `row` its row in that task's training data,
    `written` the step (counted over the whole run) at which it was written, `width` how many outputs the network had
    then, `weight` what it counts for in a loss. `seen` counts the samples offered to a reservoir, `clock` the steps
    trained.
    """

    label: np.ndarray
    task: np.ndarray
    row: np.ndarray
    written: np.ndarray
    width: np.ndarray
    weight: np.ndarray
    count: int = 0
    seen: int = 0
    clock: int = 0

    @classmethod
    def empty(cls, size: int) -> Slots:
        """Slots of a memory that holds nothing yet."""
        if size > MOST:
            raise UserError(f"a memory of {size} images is too large; choose a buffer of at most {MOST}")
        label, task, row, written, width = (np.full(size, EMPTY, np.int64) for _ in range(5))
        return cls(label, task, row, written, width, np.ones(size, np.float32))

    @property
    def size(self) -> int:
        """How many images the memory can hold."""
        return len(self.label)

    def copy(self) -> Slots:
        """An independent copy."""
        return Slots(
            self.label.copy(),
            self.task.copy(),
            self.row.copy(),
            self.written.copy(),
            self.width.copy(),
            self.weight.copy(),
            self.count,
            self.seen,
            self.clock,
        )

    def grown(self, size: int) -> Slots:
        """A copy with room for `size`; what is held stays where it is."""
        more = Slots.empty(size - self.size)
        arrays = (f.name for f in fields(self) if isinstance(getattr(self, f.name), np.ndarray))
        joined: dict[str, Any] = {name: np.concatenate([getattr(self, name), getattr(more, name)]) for name in arrays}
        return replace(self, **joined)

    def keep(self, kept: np.ndarray, size: int) -> Slots:
        """A copy for a memory of `size` that holds the filled slots `kept` alone, in this order from the front."""
        out = Slots.empty(size)
        for field in fields(self):
            if isinstance(getattr(self, field.name), np.ndarray):
                getattr(out, field.name)[: len(kept)] = getattr(self, field.name)[kept]
        return replace(out, count=len(kept), seen=self.seen, clock=self.clock)

    def classes(self) -> np.ndarray:
        """The classes held, ascending."""
        return np.unique(self.label[: self.count])

    def of_class(self, label: int) -> np.ndarray:
        """The filled slots that hold a class."""
        return np.flatnonzero(self.label[: self.count] == label)

    def write(self, slots: np.ndarray, label: np.ndarray, task: int, rows: np.ndarray, width: int) -> None:
        """Note that `slots` (all different) now hold `rows` of `task`, at the present clock."""
        self.label[slots], self.task[slots], self.row[slots] = label, task, rows
        self.written[slots], self.width[slots], self.weight[slots] = self.clock, width, 1.0
        self.count = max(self.count, int(slots.max(initial=EMPTY)) + 1)
