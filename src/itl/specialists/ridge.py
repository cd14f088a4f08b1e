"""Ridge regression on frozen features, from an accumulated Gram matrix."""

from __future__ import annotations

import torch
from torch import Tensor

from itl.nets import Net
from itl.settings import SpecialistSettings, Weight
from itl.specialists.base import Options
from itl.specialists.feature_statistics import FeatureStatistics

SHRINKAGE = 10.0  # added to the covariance of `familiarity`, in units of its mean variance


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

    def __init__(self, settings: SpecialistSettings) -> None:
        super().__init__(settings)
        self._distance: tuple[Tensor, tuple[Tensor, Tensor, Tensor]] | None = None

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

    def familiarity(self, net: Net, x: Tensor) -> Tensor | None:
        """The negative Mahalanobis distance to the nearest class, relative to the distance from the mean of all images.

        Both distances are squared. The division keeps features of small norm from looking familiar.
        """
        if "gram" not in self.sums:
            return None
        gram = self.sums["gram"]
        if self._distance is None or self._distance[0] is not gram:  # every task replaces the sums
            self._distance = gram, self._class_distance()
        precision, linear, constant = self._distance[1]
        mean = self.sums["features"] / self.sums["samples"]
        features = self.expand(self.network_features(net, x)).double() - mean
        common = ((features @ precision) * features).sum(1)
        nearest = common + (features @ linear + constant).min(1).values
        return -nearest / features.square().sum(1).clamp(min=1e-12)

    def _class_distance(self) -> tuple[Tensor, Tensor, Tensor]:
        """A, B and c such that φᵀAφ + (φᵀB + c)ₖ is the squared distance of φ to class k, for centered features φ."""
        count, n = self.sums["count"], self.sums["samples"]
        known = count > 0
        count, means = count[known], (self.sums["products"].T[known] / count[known][:, None])
        precision = _precision((self.sums["gram"] - means.T @ (count[:, None] * means)) / n)
        means = means - self.sums["features"] / n
        return precision, -2 * precision @ means.T, ((means @ precision) * means).sum(1)


def _precision(covariance: Tensor) -> Tensor:
    """The inverse of a covariance matrix, shrunk towards a multiple of the identity."""
    variance = covariance.diagonal().mean().clamp(min=1e-12)
    identity = torch.eye(len(covariance), dtype=covariance.dtype, device=covariance.device)
    inverse: Tensor = torch.linalg.inv(covariance + SHRINKAGE * variance * identity)
    return inverse
