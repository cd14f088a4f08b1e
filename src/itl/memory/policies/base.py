"""Base class of memory policies."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np

from itl.memory.candidates import Candidates
from itl.memory.model_outputs import ModelOutputs
from itl.memory.online_selection import OnlineSelector
from itl.memory.slots import Slots

WritePlanner = Callable[[Slots, np.ndarray, np.random.Generator], np.ndarray]
"""Signature of `MemoryPolicy.plan_writes`."""


class MemoryPolicy:
    """Chooses which images a memory of fixed size keeps. A policy overrides one method or sets one class attribute.

    - Online, on every batch, independent of the network: override `plan_writes`.
    - At the end of a task: override `select_at_task_end`.
    - At the end of a task, among candidates that every training step offers: set `candidates_class`.
    - Online, by what the network computes in the step: set `selector_class`, and override `plan_writes` to fill the
      free slots.

    A policy holds no state: everything it needs is in its arguments, and all randomness comes from `rng`.
    """

    candidates_class: ClassVar[type[Candidates] | None] = None
    """Collects candidates while a task is trained, and selects among them at its end."""

    selector_class: ClassVar[type[OnlineSelector] | None] = None
    """Chooses slots on the device, within the training step."""

    assigns_weights: ClassVar[bool] = False
    """Whether the policy gives each image a weight for the loss."""

    def plan_writes(self, slots: Slots, labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Plan where the samples of an epoch are written.

        Args:
            slots: Metadata of the memory at the epoch's start. Must not be changed.
            labels: Labels of the samples in the order in which they are offered, int64 `[n]`.
            rng: Generator of all draws.

        Returns:
            The slot for each sample, int64 `[n]`; `slots.size` for samples that are not written.
        """
        raise NotImplementedError

    def select_at_task_end(
        self, slots: Slots, labels: np.ndarray, rng: np.random.Generator, outputs: ModelOutputs
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Select the images to keep when a task ends.

        Args:
            slots: Metadata of the memory before the task.
            labels: Labels of the task's samples, int64 `[n]`.
            rng: Generator of all draws.
            outputs: Features and logits of the task's images and of the memory, computed on first use.

        Returns:
            The slots to overwrite (all different, int64 `[k]`) and the task's rows to write there (int64 `[k]`), or
            None to leave the memory as it is.
        """
        return None

    @property
    def plans_writes(self) -> bool:
        """Whether the policy writes while a task is trained, that is, overrides `plan_writes`."""
        return type(self).plan_writes is not MemoryPolicy.plan_writes
