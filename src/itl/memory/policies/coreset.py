"""Coreset-based sampling (the ITL paper's appendix): a reservoir restricted to a coreset of the task.

The coreset is chosen anew every few epochs, so that its weighted gradient follows the whole task's (CRAIG,
Mirzasoleiman et al., 2020).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from itl.engine.device import Engine
from itl.memory.candidates import Candidates, Inputs, PolicyOptions
from itl.memory.greedy_selection import facility_location
from itl.memory.model_outputs import ModelOutputs


def coreset(errors: Tensor, labels: np.ndarray, fraction: float) -> np.ndarray:
    """The weights `[n]` of a facility-location coreset of n samples, 0 for those outside; they sum to n.

    `errors` `[n, classes]` are the gradients by the last layer's output, which bound those by all weights. As in CRAIG,
    each class has its own coreset, of `fraction` of its samples.
    """
    weights = np.zeros(len(labels))
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        count = max(1, round(fraction * len(rows)))
        chosen, members = facility_location(errors[torch.from_numpy(rows).to(errors.device)], count)
        weights[rows[chosen.numpy()]] = members.numpy()
    return weights


class Coreset(Candidates):
    """S(D_t) ∩ C_i is offered to a plain reservoir, each sample with the weight it has in C_i.

    C_i is a fraction s of the task, chosen by the network as it is before every R-th epoch.
    """

    def __init__(self, count: int, width: int | None, options: PolicyOptions, engine: Engine) -> None:
        super().__init__(count, width, options, engine)
        self.present = torch.zeros(count, dtype=torch.float64)  # C_i's weights, 0 outside

    def foresee(self, epoch: int, labels: np.ndarray, sight: ModelOutputs) -> np.ndarray | None:
        """The coreset of the epochs from this one on, where a new one is due."""
        if epoch % self.options.every:
            return None
        errors = sight.task.errors(self.engine.send(torch.from_numpy(labels)))
        return coreset(errors, labels, self.options.fraction)

    def settle(self, foreseen: np.ndarray | None) -> None:
        """From now on this is C_i."""
        if foreseen is not None:
            self.present.copy_(torch.from_numpy(foreseen))

    def draw(self, rng: np.random.Generator, rows: np.ndarray, foreseen: np.ndarray | None) -> Inputs:
        """Clocks for the samples in the coreset, none (infinite) for the others; weights with a mean of 1 over it."""
        inputs = super().draw(rng, rows, foreseen)
        weights = self.present.numpy() if foreseen is None else foreseen
        inside = weights[rows] > 0
        inputs["clock"] = np.where(inside, inputs["clock"], np.inf)
        inputs["weight"] = weights[rows] * (weights > 0).sum() / weights.sum()
        return inputs

    def tensors(self) -> dict[str, Tensor]:
        """And the present coreset."""
        return {**super().tensors(), "present": self.present}
