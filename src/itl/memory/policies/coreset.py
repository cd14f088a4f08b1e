"""Coreset-based sampling (the ITL paper's appendix): a reservoir restricted to a coreset of the task.

The coreset is selected again every few epochs so that its weighted gradient stays close to the gradient of the whole
task (CRAIG, Mirzasoleiman et al., 2020).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from itl.engine.device import Engine
from itl.memory.candidates import Candidates, Inputs, PolicyOptions
from itl.memory.greedy_selection import facility_location
from itl.memory.model_outputs import ModelOutputs
from itl.memory.policies.base import MemoryPolicy


def coreset_weights(errors: Tensor, labels: np.ndarray, fraction: float) -> np.ndarray:
    """Weights of a facility-location coreset of n samples, float64 `[n]`: 0 outside it, n in total.

    `errors` `[n, classes]` are the gradients with respect to the logits, which bound the gradients with respect to all
    weights. As in CRAIG, each class has its own coreset, with `fraction` of its samples.
    """
    weights = np.zeros(len(labels))
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        count = max(1, round(fraction * len(rows)))
        chosen, cluster_sizes = facility_location(errors[torch.from_numpy(rows).to(errors.device)], count)
        weights[rows[chosen.numpy()]] = cluster_sizes.numpy()
    return weights


class CoresetCandidates(Candidates):
    """Offers the samples of the current coreset C_i to a plain reservoir, each with its weight in C_i.

    C_i is a fraction s of the task, selected by the network as it is before every R-th epoch.
    """

    def __init__(self, count: int, num_outputs: int | None, options: PolicyOptions, engine: Engine) -> None:
        super().__init__(count, num_outputs, options, engine)
        self.coreset = torch.zeros(count, dtype=torch.float64)  # weights in C_i, 0 outside

    def prepare_epoch(self, epoch: int, labels: np.ndarray, outputs: ModelOutputs) -> np.ndarray | None:
        """Weights of a new coreset if one is due at this epoch."""
        if epoch % self.options.every:
            return None
        errors = outputs.task.errors(self.engine.send(torch.from_numpy(labels)))
        return coreset_weights(errors, labels, self.options.fraction)

    def commit_epoch(self, prepared: np.ndarray | None) -> None:
        """Make the new coreset, if there is one, the current one."""
        if prepared is not None:
            self.coreset.copy_(torch.from_numpy(prepared))

    def draw_inputs(self, rng: np.random.Generator, rows: np.ndarray, prepared: np.ndarray | None) -> Inputs:
        """Infinite arrival times outside the coreset; weights with a mean of 1 over it."""
        inputs = super().draw_inputs(rng, rows, prepared)
        weights = self.coreset.numpy() if prepared is None else prepared
        inside = weights[rows] > 0
        inputs["clock"] = np.where(inside, inputs["clock"], np.inf)
        inputs["weight"] = weights[rows] * (weights > 0).sum() / weights.sum()
        return inputs

    def tensors(self) -> dict[str, Tensor]:
        """Tensors to checkpoint, with the current coreset."""
        return {**super().tensors(), "present": self.coreset}


class Coreset(MemoryPolicy):
    """Samples from weighted coresets of the task, merged into the memory at the task's end."""

    candidates_class = CoresetCandidates
    assigns_weights = True
