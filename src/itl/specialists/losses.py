"""The few loss terms that replay methods are made of, with their reductions spelled out."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def reduce(values: Tensor, how: str) -> Tensor:
    """Per-sample `[n]` or per-sample-and-class `[n, classes]` values to a scalar.

    "mean" is over everything (the benchmark's code), "sum" over everything (the paper's appendix), "classes" sums over
    the classes and takes the mean over the batch.
    """
    if how == "sum":
        return values.sum()
    if how == "classes" and values.ndim == 2:
        return values.sum(1).mean()
    return values.mean()


def cross_entropy(logits: Tensor, labels: Tensor, how: str = "mean") -> Tensor:
    """Cross-entropy of logits `[n, classes]` with labels `[n]`, in float32 whatever the precision of the forward."""
    return reduce(F.cross_entropy(logits.float(), labels, reduction="none"), how)


def squared_error(logits: Tensor, targets: Tensor, how: str = "mean", widths: Tensor | None = None) -> Tensor:
    """Squared distance of logits and targets, both `[n, classes]`.

    `widths` `[n]`, where given, says how many columns each target had when it was stored: the others do not count.
    """
    square = (logits.float() - targets.float()) ** 2
    if widths is None:
        return reduce(square, how)
    counted = torch.arange(square.shape[1], device=square.device) < widths[:, None]
    square = torch.where(counted, square, 0.0)
    return square.sum() / counted.sum() if how == "mean" else reduce(square, how)
