"""Ridge regression on frozen features, from an accumulated Gram matrix."""

from __future__ import annotations

import torch
from torch import Tensor

from itl.settings import Weight
from itl.specialists.base import Options
from itl.specialists.feature_statistics import FeatureStatistics


class RidgeOptions(Options):
    """`ridge`: λ in units of the features' mean variance, so its strength is that of this number of samples."""

    ridge: Weight = 3000.0


class Ridge(FeatureStatistics):
    """Regresses one-hot labels on the features: (Σφφᵀ + λI)⁻¹ Σφyᵀ of centered features φ and labels y, exactly.

    The Gram matrix Σφφᵀ is summed over all classes, so it keeps the share of a class that is forgotten.
    """

    name = "ridge"
    summary = "ridge regression on frozen features, exact for all tasks together; keeps no images"
    reference = (
        "Hoerl, Kennard: Ridge Regression: Biased Estimation for Nonorthogonal Problems, Technometrics 1970; "
        "Zhuang et al.: ACIL: Analytic Class-Incremental Learning, NeurIPS 2022"
    )
    defaults = {"memory.policy": "none", "generalist": "none"}
    class_axes = {"products": 1, "count": 0}
    Options = RidgeOptions
    options: RidgeOptions

    def accumulate(self, features: Tensor, labels: Tensor) -> None:
        """Gram matrix, products with the labels, sums and counts."""
        self.add_to("gram", features.T @ features)
        self.add_to("products", features.T @ labels)
        self.add_to("features", features.double().sum(0))
        self.add_to("count", labels.sum(0))
        self.add_to("samples", torch.tensor(float(len(labels))))

    def solve(self) -> tuple[Tensor, Tensor]:
        """The minimizer of Σ‖Wφ + b − y‖² + λ v ‖W‖², where v is the mean variance of the features."""
        count, features = self.sums["count"], self.sums["features"]
        n = self.sums["samples"]
        mean, label_mean = features / n, count / n
        gram = self.sums["gram"] - n * torch.outer(mean, mean)
        products = self.sums["products"] - n * torch.outer(mean, label_mean)
        variance = (gram.diagonal().mean() / n).clamp(min=1e-12)
        gram.diagonal().add_(self.options.ridge * variance)
        weight = torch.linalg.solve(gram, products).T
        return weight, torch.where(count > 0, label_mean - weight @ mean, -1e4)
