"""Select samples with probability proportional to the entropy of their predictions (the ITL paper's appendix)."""

from __future__ import annotations

import torch
from torch import Tensor

from itl.memory.candidates import Candidates
from itl.memory.policies.base import MemoryPolicy


def entropy(logits: Tensor, temperature: float) -> Tensor:
    """Entropy of softmax(logits / temperature) in nats, `[n]` from `[n, classes]`."""
    log_p = (logits.double() / temperature).log_softmax(1)
    return -(log_p.exp() * log_p).sum(1)


class EntropyCandidates(Candidates):
    """Weighted reservoir: the weight of x is h(x) / Σ h over its training batch, at the step that offers it."""

    needs_logits = True

    def rate(self, logits: Tensor | None, batch: dict[str, Tensor]) -> Tensor:
        """Entropies of the batch, normalized to sum to 1."""
        assert logits is not None
        h = entropy(logits, self.options.temperature).clamp(min=torch.finfo(torch.float64).tiny)
        return h / h.sum()


class Entropy(MemoryPolicy):
    """The less certain the specialist is about a sample, the more likely it is selected."""

    candidates_class = EntropyCandidates
