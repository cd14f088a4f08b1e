"""Herding at the task's end (iCaRL)."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn.functional import normalize

from itl.memory.class_balance import merge_by_class
from itl.memory.greedy_selection import herding
from itl.memory.model_outputs import ModelOutputs
from itl.memory.policies.base import MemoryPolicy
from itl.memory.slots import Slots


class Herding(MemoryPolicy):
    """Samples whose mean feature is close to their class's mean feature; all classes share the memory equally."""

    def select_at_task_end(
        self, slots: Slots, labels: np.ndarray, rng: np.random.Generator, outputs: ModelOutputs
    ) -> tuple[np.ndarray, np.ndarray]:
        """Take the first samples of each class in herding order; old classes give up their last ones."""
        ranked = rank_by_herding(normalize(outputs.task.features), labels, slots.size)
        return merge_by_class(slots, labels, rng, ranked, evict_last=True)


def rank_by_herding(features: torch.Tensor, labels: np.ndarray, count: int) -> np.ndarray:
    """Rows of `features` `[n, d]`, class by class, each class in herding order and at most `count` of each."""
    order = []
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        order.append(rows[herding(features[torch.from_numpy(rows).to(features.device)], count).numpy()])
    return np.concatenate(order)
