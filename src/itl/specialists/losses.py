"""Loss terms shared by the replay methods, with explicit reductions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

EPSILON = 1e-12  # lower bound of a denominator


def reduce(values: Tensor, reduction: str) -> Tensor:
    """Reduce per-sample values `[n]` or per-sample, per-class values `[n, classes]` to a scalar.

    "mean" averages over everything (the benchmark's code), "sum" sums over everything (the paper's appendix), "classes"
    sums over the classes and averages over the batch.
    """
    if reduction == "sum":
        return values.sum()
    if reduction == "classes" and values.ndim == 2:
        return values.sum(1).mean()
    return values.mean()


def at_least_float32(values: Tensor) -> Tensor:
    """`values` in float32, or in float64 if they are, whatever the precision of the forward pass."""
    return values if values.dtype == torch.float64 else values.float()


def cross_entropy(logits: Tensor, labels: Tensor, reduction: str = "mean", weights: Tensor | None = None) -> Tensor:
    """Cross-entropy of logits `[n, classes]`, in float32 at least; `weights` `[n]` weight samples.

    `labels` are class numbers `[n]`, or probabilities `[n, classes]` in the precision of the result.
    """
    values = F.cross_entropy(at_least_float32(logits), labels, reduction="none")
    return reduce(values if weights is None else values * weights, reduction)


def normalize_weights(weights: Tensor | None) -> Tensor | None:
    """Sample weights `[n]` scaled to mean 1, so that their scale does not change that of the loss."""
    return None if weights is None else weights / weights.mean()


def mask_logits(logits: Tensor, columns: Tensor) -> Tensor:
    """Logits `[n, classes]` with minus infinity outside `columns` (bool `[classes]` or `[n, classes]`)."""
    return at_least_float32(logits).masked_fill(~columns, -torch.inf)


def squared_error(
    logits: Tensor,
    targets: Tensor,
    reduction: str = "mean",
    widths: Tensor | None = None,
    weights: Tensor | None = None,
) -> Tensor:
    """Squared error of logits and targets, both `[n, classes]`.

    Args:
        logits: The network's logits.
        targets: The logits to match.
        reduction: As for `reduce`, or "relative": the mean divided by the targets' mean square.
        widths: How many columns of each target count `[n]`; all if None.
        weights: Sample weights `[n]`.
    """
    if reduction == "relative":
        scale = at_least_float32(targets).square().mean().clamp(min=EPSILON)
        return squared_error(logits, targets, "mean", widths, weights) / scale
    square = (at_least_float32(logits) - at_least_float32(targets)) ** 2
    if weights is not None:
        square = square * weights[:, None]
    if widths is None:
        return reduce(square, reduction)
    counted = torch.arange(square.shape[1], device=square.device) < widths[:, None]
    square = torch.where(counted, square, 0.0)
    return square.sum() / counted.sum() if reduction == "mean" else reduce(square, reduction)


def distillation(logits: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """Cross-entropy of softmax(logits / T) and softmax(targets / T), both `[n, columns]`, averaged over the batch."""
    probabilities = F.softmax(at_least_float32(targets) / temperature, 1)
    return -(probabilities * F.log_softmax(at_least_float32(logits) / temperature, 1)).sum(1).mean()


def supervised_contrast(features: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Supervised contrastive loss (Khosla et al., 2020) of each anchor: `[m]`.

    −mean over the other samples of the anchor's class of log( exp(f·f⁺/T) / Σ over all other samples exp(f·f′/T) ).

    Args:
        features: Unit vectors `[m, d]`; several views of an image are separate rows.
        labels: Their labels `[m]`; each must occur at least twice.
        temperature: T.
    """
    with torch.autocast(features.device.type, enabled=False):  # the temperature would amplify bf16's rounding errors
        similarity = at_least_float32(features) @ at_least_float32(features).T / temperature
    diagonal = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    log_probability = F.log_softmax(similarity.masked_fill(diagonal, -torch.inf), 1)
    positive = (labels[:, None] == labels[None]) & ~diagonal
    return -torch.where(positive, log_probability, 0.0).sum(1) / positive.sum(1)
