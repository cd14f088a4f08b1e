"""Herding at the task's end: of every class the samples whose mean feature is the class's own (iCaRL)."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn.functional import normalize

from itl.memory.greedy_selection import herding
from itl.memory.model_outputs import ModelOutputs


def herded(labels: np.ndarray, size: int, sight: ModelOutputs) -> np.ndarray:
    """The task's rows class by class, each class in herding order over its normalised features, `size` of each."""
    features = normalize(sight.task.features)
    order = []
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        order.append(rows[herding(features[torch.from_numpy(rows).to(features.device)], size).numpy()])
    return np.concatenate(order)
