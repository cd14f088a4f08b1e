"""Gradient coresets (GCR, Tiwari et al., 2022): a weighted memory whose gradient is that of all it was chosen from."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from itl.memory.candidates import Candidates
from itl.memory.greedy_selection import matching_pursuit
from itl.memory.model_outputs import ModelOutputs, Seen
from itl.memory.policies.stratified import quotas
from itl.memory.slots import Slots

RIDGE = 0.5  # λ of the weights' least squares, as in the authors' code


class GradientCoreset(Candidates):
    """Candidates are what the specialist gets right, each as likely; at the task's end every class is chosen anew.

    Of a class of which it had nothing right all samples are candidates, with what it says of them in the end.
    The gradient is that of β CE + α ‖z − stored z‖² by the last layer's weights. A class's images in memory, with the
    weights they have, and its candidates compete for its share; matching pursuit chooses and weighs.
    """

    needs_logits = True

    def rate(self, logits: Tensor | None, batch: dict[str, Tensor]) -> Tensor:
        """1 for a sample the specialist has right, else 0."""
        assert logits is not None
        return (logits.argmax(1) == batch["y"]).double()

    def choose(
        self, slots: Slots, labels: np.ndarray, rng: np.random.Generator, sight: ModelOutputs, stored: Tensor | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Slots to overwrite and the rows put there; the weights of what stays and of what comes are set."""
        ranked = self._ranked(labels, sight)
        classes = np.union1d(slots.classes(), np.unique(labels[ranked]))
        quota = quotas(
            np.array([(slots.label[: slots.count] == c).sum() + (labels[ranked] == c).sum() for c in classes]),
            slots.size,
            rng,
        )
        free, taken = list(range(slots.count, slots.size)), []
        for label, count in zip(classes, quota, strict=True):
            held, rows = slots.of_class(label), ranked[labels[ranked] == label]
            pool = self._pool(int(label), held, rows, slots, sight, stored)
            chosen, weights = share(*pool, int(count))
            stays = chosen < len(held)
            slots.weight[held[chosen[stays]]] = weights[stays]
            free += list(np.setdiff1d(held, held[chosen[stays]]))
            fresh = rows[chosen[~stays] - len(held)]
            self.weights[torch.from_numpy(fresh).to(self.weights.device)] = torch.from_numpy(weights[~stays]).to(
                self.weights
            )
            taken += list(fresh)
        return np.array(sorted(free)[: len(taken)], np.int64), np.array(taken, np.int64)

    def _ranked(self, labels: np.ndarray, sight: ModelOutputs) -> np.ndarray:
        """The candidates' rows, and behind them all of the classes that have none."""
        ranked = self.ranked()
        others = np.flatnonzero(~np.isin(labels, labels[ranked]))
        if self.logits is not None and len(others):
            self.logits[torch.from_numpy(others).to(self.logits.device)] = sight.of(others).logits
        return np.concatenate([ranked, others])

    def _pool(
        self, label: int, held: np.ndarray, rows: np.ndarray, slots: Slots, sight: ModelOutputs, stored: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Errors, inputs and mass of a class's images in memory and its candidates, in this order."""
        device = self.keys.device
        parts: list[tuple[Tensor, Tensor]] = []
        if len(held):
            where = torch.from_numpy(held).to(device)
            seen = Seen(sight.held.features[where], sight.held.logits[where])
            kept = None if stored is None else stored[where]
            parts.append(self._gradient(seen, label, kept, torch.from_numpy(slots.width[held]).to(device)))
        if len(rows):
            kept = None if self.logits is None else self.logits[torch.from_numpy(rows).to(device)]
            parts.append(self._gradient(sight.of(rows), label, kept, None))
        errors, inputs = (torch.cat(column) for column in zip(*parts, strict=True))
        mass = torch.from_numpy(np.r_[slots.weight[held], np.ones(len(rows), np.float32)]).to(device)
        return errors, inputs, mass

    def _gradient(self, seen: Seen, label: int, kept: Tensor | None, widths: Tensor | None) -> tuple[Tensor, Tensor]:
        """A last layer's gradients as (errors `[n, classes]`, inputs `[n, features + 1]`)."""
        logits = seen.logits
        labels = torch.full((len(logits),), label, device=logits.device)
        errors = self.options.beta * seen.errors(labels)
        if kept is not None:
            apart = logits - kept
            if widths is not None:
                apart = torch.where(torch.arange(apart.shape[1], device=apart.device) < widths[:, None], apart, 0.0)
            errors = errors + self.options.alpha * 2 / logits.shape[1] * apart
        return errors, F.pad(seen.features, (0, 1), value=1.0)


def share(errors: Tensor, inputs: Tensor, mass: Tensor, count: int) -> tuple[np.ndarray, np.ndarray]:
    """`count` of n samples and their weights: matching pursuit's, and where it stops early the first of the others."""
    if count >= len(mass):
        return np.arange(len(mass)), mass.cpu().numpy()
    chosen, weights = matching_pursuit(errors, inputs, mass, count, RIDGE)
    rest = np.setdiff1d(np.arange(len(mass)), chosen.numpy())[: count - len(chosen)]
    return np.r_[chosen.numpy(), rest], np.r_[weights.numpy(), np.ones(len(rest))].astype(np.float32)
