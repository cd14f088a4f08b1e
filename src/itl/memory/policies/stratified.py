"""Stratified random sampling at the task's end (ITL)."""

from __future__ import annotations

import numpy as np

from itl.memory.class_balance import merge_by_class
from itl.memory.model_outputs import ModelOutputs
from itl.memory.policies.base import MemoryPolicy
from itl.memory.slots import Slots


class Stratified(MemoryPolicy):
    """Every class holds the same number of slots, to within one. Frozen while a task is trained."""

    def select_at_task_end(
        self, slots: Slots, labels: np.ndarray, rng: np.random.Generator, outputs: ModelOutputs | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Old classes give up random slots, which random samples of the task's classes take."""
        return merge_by_class(slots, labels, rng)
