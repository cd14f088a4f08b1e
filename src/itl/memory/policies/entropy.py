"""Entropy-based sampling (the ITL paper's appendix): the less certain the specialist, the likelier a candidate."""

from __future__ import annotations

import torch
from torch import Tensor

from itl.memory.candidates import Candidates


def entropy(logits: Tensor, temperature: float) -> Tensor:
    """h(x) of the predictions softmax(logits / temperature), in nats: `[n]` from `[n, classes]`."""
    log_p = (logits.double() / temperature).log_softmax(1)
    return -(log_p.exp() * log_p).sum(1)


class Entropy(Candidates):
    """Weighted reservoir; a sample's weight is h(x) / Σ h over its training batch, at the step that offers it."""

    needs_logits = True

    def rate(self, logits: Tensor | None, batch: dict[str, Tensor]) -> Tensor:
        """The batch's entropies, normalised in it."""
        assert logits is not None
        h = entropy(logits, self.options.temperature).clamp(min=torch.finfo(torch.float64).tiny)
        return h / h.sum()
