"""Gradient coresets (GCR, Tiwari et al., 2022): a weighted memory whose gradient matches that of all candidates."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from itl.memory.candidates import Candidates
from itl.memory.class_balance import class_quotas
from itl.memory.greedy_selection import matching_pursuit
from itl.memory.model_outputs import FeaturesAndLogits, ModelOutputs
from itl.memory.policies.base import MemoryPolicy
from itl.memory.slots import Slots

RIDGE = 0.5  # λ of the least-squares fit of the weights, as in the authors' code


class GradientCoresetCandidates(Candidates):
    """Samples that the specialist classifies correctly are candidates, with equal probability.

    If no sample of a class was classified correctly, all its samples are candidates, with their logits at the task's
    end. At the task's end every class is selected anew: its images in memory, with their weights, and its candidates
    compete for its quota. Matching pursuit selects and weights them by the gradient of β CE + α ‖z − stored z‖² with
    respect to the last layer's weights.
    """

    needs_logits = True

    def rate(self, logits: Tensor | None, batch: dict[str, Tensor]) -> Tensor:
        """1 for samples that are classified correctly, else 0."""
        assert logits is not None
        return (logits.argmax(1) == batch["y"]).double()

    def select(
        self,
        slots: Slots,
        labels: np.ndarray,
        rng: np.random.Generator,
        outputs: ModelOutputs,
        stored_logits: Tensor | None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Slots to overwrite and rows to write there; also sets the weights of the images kept and written."""
        ranked = self._ranking_of_all_classes(labels, outputs)
        classes = np.union1d(slots.classes(), np.unique(labels[ranked]))
        quota = class_quotas(
            np.array([(slots.label[: slots.count] == c).sum() + (labels[ranked] == c).sum() for c in classes]),
            slots.size,
            rng,
        )
        free, new_rows = list(range(slots.count, slots.size)), []
        for label, count in zip(classes, quota, strict=True):
            stored, rows = slots.of_class(label), ranked[labels[ranked] == label]
            pool = self._gradients_of_class(int(label), stored, rows, slots, outputs, stored_logits)
            chosen, weights = select_and_weight(*pool, int(count))
            is_stored = chosen < len(stored)
            slots.weight[stored[chosen[is_stored]]] = weights[is_stored]
            free += list(np.setdiff1d(stored, stored[chosen[is_stored]]))
            chosen_rows = rows[chosen[~is_stored] - len(stored)]
            new_weights = torch.from_numpy(weights[~is_stored]).to(self.weights)
            self.weights[torch.from_numpy(chosen_rows).to(self.weights.device)] = new_weights
            new_rows += list(chosen_rows)
        return np.array(sorted(free)[: len(new_rows)], np.int64), np.array(new_rows, np.int64)

    def _ranking_of_all_classes(self, labels: np.ndarray, outputs: ModelOutputs) -> np.ndarray:
        """Rows of the candidates, followed by all rows of the classes without candidates."""
        ranked = self.ranking()
        others = np.flatnonzero(~np.isin(labels, labels[ranked]))
        if self.logits is not None and len(others):
            self.logits[torch.from_numpy(others).to(self.logits.device)] = outputs.for_rows(others).logits
        return np.concatenate([ranked, others])

    def _gradients_of_class(
        self,
        label: int,
        stored: np.ndarray,
        rows: np.ndarray,
        slots: Slots,
        outputs: ModelOutputs,
        stored_logits: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Errors, inputs and weights of a class's images in memory, then of its candidates."""
        device = self.keys.device
        parts: list[tuple[Tensor, Tensor]] = []
        if len(stored):
            index = torch.from_numpy(stored).to(device)
            current = FeaturesAndLogits(outputs.stored.features[index], outputs.stored.logits[index])
            target = None if stored_logits is None else stored_logits[index]
            parts.append(self._gradient(current, label, target, torch.from_numpy(slots.width[stored]).to(device)))
        if len(rows):
            target = None if self.logits is None else self.logits[torch.from_numpy(rows).to(device)]
            parts.append(self._gradient(outputs.for_rows(rows), label, target, None))
        errors, inputs = (torch.cat(column) for column in zip(*parts, strict=True))
        weights = torch.from_numpy(np.r_[slots.weight[stored], np.ones(len(rows), np.float32)]).to(device)
        return errors, inputs, weights

    def _gradient(
        self, current: FeaturesAndLogits, label: int, target: Tensor | None, widths: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Gradients of the last layer as factors: errors `[n, classes]` and inputs `[n, features + 1]`.

        `target` are stored logits `[n, classes]`, of which the first `widths` `[n]` columns count (None: all).
        """
        logits = current.logits
        labels = torch.full((len(logits),), label, device=logits.device)
        errors = self.options.beta * current.errors(labels)
        if target is not None:
            difference = logits - target
            if widths is not None:
                columns = torch.arange(difference.shape[1], device=difference.device)
                difference = torch.where(columns < widths[:, None], difference, 0.0)
            errors = errors + self.options.alpha * 2 / logits.shape[1] * difference
        return errors, F.pad(current.features, (0, 1), value=1.0)


class GradientCoreset(MemoryPolicy):
    """A weighted coreset of the last layer's gradients, selected at the task's end."""

    candidates_class = GradientCoresetCandidates
    assigns_weights = True


def select_and_weight(errors: Tensor, inputs: Tensor, weights: Tensor, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Select `count` of n samples by matching pursuit: indices and float32 weights, each `[count]`.

    If matching pursuit stops early, the first of the remaining samples follow, with weight 1.
    """
    if count >= len(weights):
        return np.arange(len(weights)), weights.cpu().numpy()
    chosen, fitted = matching_pursuit(errors, inputs, weights, count, RIDGE)
    rest = np.setdiff1d(np.arange(len(weights)), chosen.numpy())[: count - len(chosen)]
    return np.r_[chosen.numpy(), rest], np.r_[fitted.numpy(), np.ones(len(rest))].astype(np.float32)
