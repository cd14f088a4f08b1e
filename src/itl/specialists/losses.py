"""The few loss terms that replay methods are made of, with their reductions spelled out."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

TINY = 1e-12  # under a division


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


def wide(values: Tensor) -> Tensor:
    """In float32 at least, whatever the precision of the forward."""
    return values if values.dtype == torch.float64 else values.float()


def cross_entropy(logits: Tensor, labels: Tensor, how: str = "mean", weights: Tensor | None = None) -> Tensor:
    """Cross-entropy of logits `[n, classes]` with labels `[n]`, in float32 at least.

    `weights` `[n]`, where given, are what the samples count for.
    """
    values = F.cross_entropy(wide(logits), labels, reduction="none")
    return reduce(values if weights is None else values * weights, how)


def shares(weights: Tensor | None) -> Tensor | None:
    """A batch's weights `[n]`, brought to a mean of 1: the scale of the loss does not depend on theirs."""
    return None if weights is None else weights / weights.mean()


def among(logits: Tensor, columns: Tensor) -> Tensor:
    """The logits `[n, classes]` with those outside `columns` (bool `[classes]` or `[n, classes]`) at minus infinity."""
    return wide(logits).masked_fill(~columns, -torch.inf)


def squared_error(
    logits: Tensor,
    targets: Tensor,
    how: str = "mean",
    widths: Tensor | None = None,
    weights: Tensor | None = None,
) -> Tensor:
    """Squared distance of logits and targets, both `[n, classes]`.

    `widths` `[n]`, where given, says how many columns each target had when it was stored: the others do not count.
    `weights` `[n]`, where given, are what the samples count for. "relative" is the mean over the targets' mean square.
    """
    if how == "relative":
        scale = wide(targets).square().mean().clamp(min=TINY)
        return squared_error(logits, targets, "mean", widths, weights) / scale
    square = (wide(logits) - wide(targets)) ** 2
    if weights is not None:
        square = square * weights[:, None]
    if widths is None:
        return reduce(square, how)
    counted = torch.arange(square.shape[1], device=square.device) < widths[:, None]
    square = torch.where(counted, square, 0.0)
    return square.sum() / counted.sum() if how == "mean" else reduce(square, how)


def distillation(logits: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """Cross-entropy of softmax(logits / T) with softmax(targets / T), both `[n, columns]`: the mean over the batch."""
    aim = F.softmax(wide(targets) / temperature, 1)
    return -(aim * F.log_softmax(wide(logits) / temperature, 1)).sum(1).mean()


def contrast(features: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Supervised contrast (Khosla et al., 2020) of unit vectors `[m, d]` with labels `[m]`: one value an anchor, `[m]`.

    −mean over the others of the anchor's class of log( exp(f·f⁺/T) / Σ over all others exp(f·f′/T) ). Every label must
    occur twice at least: several views of one image are as many rows.
    """
    with torch.autocast(features.device.type, enabled=False):  # a temperature magnifies what bf16 would leave out
        alike = wide(features) @ wide(features).T / temperature
    itself = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    log_chance = F.log_softmax(alike.masked_fill(itself, -torch.inf), 1)
    positive = (labels[:, None] == labels[None]) & ~itself
    return -torch.where(positive, log_chance, 0.0).sum(1) / positive.sum(1)
