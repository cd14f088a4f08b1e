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


def cross_entropy(logits: Tensor, labels: Tensor, how: str = "mean", weights: Tensor | None = None) -> Tensor:
    """Cross-entropy of logits `[n, classes]` with labels `[n]`, in float32 whatever the precision of the forward.

    `weights` `[n]`, where given, are what the samples count for.
    """
    values = F.cross_entropy(logits.float(), labels, reduction="none")
    return reduce(values if weights is None else values * weights, how)


def shares(weights: Tensor | None) -> Tensor | None:
    """A batch's weights `[n]`, brought to a mean of 1: the scale of the loss does not depend on theirs."""
    return None if weights is None else weights / weights.mean()


def squared_error(
    logits: Tensor,
    targets: Tensor,
    how: str = "mean",
    widths: Tensor | None = None,
    weights: Tensor | None = None,
) -> Tensor:
    """Squared distance of logits and targets, both `[n, classes]`.

    `widths` `[n]`, where given, says how many columns each target had when it was stored: the others do not count.
    `weights` `[n]`, where given, are what the samples count for.
    """
    square = (logits.float() - targets.float()) ** 2
    if weights is not None:
        square = square * weights[:, None]
    if widths is None:
        return reduce(square, how)
    counted = torch.arange(square.shape[1], device=square.device) < widths[:, None]
    square = torch.where(counted, square, 0.0)
    return square.sum() / counted.sum() if how == "mean" else reduce(square, how)
