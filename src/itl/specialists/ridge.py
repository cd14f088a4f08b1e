"""Ridge regression on frozen features, from an accumulated Gram matrix."""

from __future__ import annotations

import math
from functools import cache
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from itl.errors import UserError
from itl.nets import Net
from itl.settings import SpecialistSettings, Weight
from itl.specialists.base import Options
from itl.specialists.feature_statistics import FeatureStatistics

GRAM, UPPER_GRAM = "sum.gram", "sum.gram_upper"  # names of saved tensors
DEFAULT_RIDGE = 3000.0
MAX_DEGREES_OF_FREEDOM = 0.5  # per sample, of a λ that cross-validation may choose
RIDGES = (30.0, 100.0, 300.0, 1000.0, DEFAULT_RIDGE, 10000.0)  # candidates for λ
MAX_LEVERAGE = 0.999  # limits 1 / (1 - leverage): a sample that determines its own prediction has leverage 1
SHRINKAGE = 10.0  # added to the covariance of `familiarity`, in units of its mean variance


class RidgeOptions(Options):
    """`ridge`: λ in units of the features' mean variance, so its strength is that of this number of samples.

    null: 3,000; `ridge` chooses it by generalized cross-validation if it has at least as many samples as features.
    """

    ridge: Weight | None = None


class Ridge(FeatureStatistics):
    """Regresses one-hot labels on the features: (Σφφᵀ + λI)⁻¹ Σφyᵀ of centered features φ and labels y, exactly.

    The Gram matrix Σφφᵀ is summed over all classes, so it keeps the share of a class that is forgotten.

    Attributes:
        cross_validates: Whether λ is chosen by cross-validation unless it is given, which takes a few factorizations of
            the Gram matrix.
    """

    name = "ridge"
    summary = "ridge regression on frozen features, exact for all tasks together; keeps no images"
    reference = (
        "Hoerl, Kennard: Ridge Regression: Biased Estimation for Nonorthogonal Problems, Technometrics 1970; "
        "Zhuang et al.: ACIL: Analytic Class-Incremental Learning, NeurIPS 2022"
    )
    defaults = {"memory.policy": "none", "generalist": "none"}
    class_axes = {"products": 1, "count": 0}
    cross_validates: ClassVar[bool] = True
    Options = RidgeOptions
    options: RidgeOptions

    def __init__(self, settings: SpecialistSettings) -> None:
        super().__init__(settings)
        self._distance: tuple[Tensor, tuple[Tensor, Tensor]] | None = None
        self._factor: Tensor | None = None  # Cholesky factor `[e, e]` of the matrix that was solved last

    def on_task_end(self) -> None:
        """Accumulate the task's images and solve for the classifier."""
        super().on_task_end()
        self._factor = None

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
        ridge = DEFAULT_RIDGE if self.options.ridge is None else self.options.ridge
        if self.options.ridge is None and self.cross_validates and n >= len(gram):
            label_variation = (count - count.square() / n).sum()
            ridge = _choose_ridge(gram, products, label_variation, n, variance)
        gram.diagonal().add_(ridge * variance)
        factor, failed = torch.linalg.cholesky_ex(gram)  # several times as fast as the general solver
        singular = bool(failed)  # to rounding: few images and hardly any regularization
        self._factor = None if singular else factor
        weight = (torch.linalg.solve(gram, products) if singular else torch.cholesky_solve(products, factor)).T
        return weight, torch.where(count > 0, label_mean - weight @ mean, -1e4)

    def held_out_scores(self, features: Tensor, labels: Tensor) -> Tensor:
        """Scores of each sample by the regression on all others: (ŷ − h y) / (1 − h) with the sample's leverage h.

        With few images, the scores of images that were learned are much nearer to the labels than those of others. The
        means still include the sample: otherwise its class would look rarer and therefore less likely, which would
        outweigh small scores.
        """
        scores = super().held_out_scores(features, labels)
        if self._factor is None:
            return scores
        n = self.sums["samples"]
        centered = self.expand(features).double() - self.sums["features"] / n
        leverage = _whiten(self._factor, centered).square().sum(1).clamp(max=MAX_LEVERAGE)[:, None]
        frequency = self.sums["count"] / n
        truth = F.one_hot(labels, scores.shape[1]) - frequency
        return (frequency + (scores - frequency - leverage * truth) / (1 - leverage)).to(scores.dtype)

    def familiarity(self, net: Net, x: Tensor) -> Tensor | None:
        """The negative Mahalanobis distance to the nearest class, relative to the distance from the mean of all images.

        Both distances are squared. The division keeps features of small norm from looking familiar.
        """
        if "gram" not in self.sums:
            return None
        gram = self.sums["gram"]
        if self._distance is None or self._distance[0] is not gram:  # every task replaces the sums
            self._distance = gram, self._whitened_means()
        factor, means = self._distance[1]
        features = self.expand(self.network_features(net, x)).double() - self.sums["features"] / self.sums["samples"]
        nearest = torch.cdist(_whiten(factor, features), means).min(1).values
        return -nearest.square() / features.square().sum(1).clamp(min=1e-12)

    def _whitened_means(self) -> tuple[Tensor, Tensor]:
        """The factor that whitens centered features `[n, e]`, and the centered class means `[classes, e]`, whitened."""
        count, n = self.sums["count"], self.sums["samples"]
        known = count > 0
        count, means = count[known], (self.sums["products"].T[known] / count[known][:, None])
        covariance = (self.sums["gram"] - means.T @ (count[:, None] * means)) / n
        covariance.diagonal().add_(SHRINKAGE * covariance.diagonal().mean().clamp(min=1e-12))
        factor, failed = torch.linalg.cholesky_ex(covariance)
        if bool(failed):
            raise UserError("the saved sums of the model's features are damaged; `itl undo` restores an earlier state")
        return factor, _whiten(factor, means - self.sums["features"] / n)

    def state_dict(self) -> dict[str, Tensor]:
        """The sums and the classifier; of the symmetric Gram matrix the upper triangle, row by row."""
        state = super().state_dict()
        gram = state.pop(GRAM, None)
        if gram is not None:
            rows, columns = torch.triu_indices(*gram.shape, device=gram.device)
            state[UPPER_GRAM] = gram[rows, columns]
        return state

    def load_state_dict(self, state: dict[str, Tensor], net: Net) -> None:
        """Restore them; states of earlier versions have the whole Gram matrix."""
        if UPPER_GRAM in state:
            state = dict(state)
            upper, size = state.pop(UPPER_GRAM), len(state["sum.features"])
            gram = upper.new_zeros(size, size)
            rows, columns = torch.triu_indices(size, size, device=upper.device)
            gram[rows, columns] = upper
            gram[columns, rows] = upper
            state[GRAM] = gram
        super().load_state_dict(state, net)


def _choose_ridge(gram: Tensor, products: Tensor, label_variation: Tensor, n: Tensor, variance: Tensor) -> float:
    """The λ of `RIDGES` with the smallest criterion of generalized cross-validation.

    The search starts at the default and ends at the first minimum, which saves factorizations.

    Args:
        gram: Gram matrix `[e, e]` of the centered features.
        products: Products `[e, outputs]` of the centered features and labels.
        label_variation: Sum of the squared centered labels.
        n: Number of samples.
        variance: Unit of λ.
    """

    @cache
    def criterion(index: int) -> float:
        return _cross_validation(gram, products, label_variation, n, RIDGES[index] * variance)

    best = RIDGES.index(DEFAULT_RIDGE)
    for step in (-1, 1):
        while 0 <= best + step < len(RIDGES) and criterion(best + step) < criterion(best):
            best += step
    return RIDGES[best]


def _cross_validation(gram: Tensor, products: Tensor, label_variation: Tensor, n: Tensor, penalty: Tensor) -> float:
    """(RSS / n) / (1 − tr H / n)² (Golub, Heath, Wahba 1979), where the hat matrix H includes the intercept.

    Infinite if the matrix is singular to rounding, or if H has more degrees of freedom than half of the samples: with
    so many the criterion prefers too little regularization.
    """
    matrix = gram.clone()
    matrix.diagonal().add_(penalty)
    factor, failed = torch.linalg.cholesky_ex(matrix)
    if int(failed):
        return math.inf
    weight = torch.cholesky_solve(products, factor)
    residuals = label_variation - (weight * products).sum() - penalty * weight.square().sum()
    identity = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    inverse_trace = torch.linalg.solve_triangular(factor, identity, upper=False).square().sum()
    share = float((len(gram) - penalty * inverse_trace + 1) / n)
    return float(residuals / n) / (1 - share) ** 2 if share <= MAX_DEGREES_OF_FREEDOM else math.inf


def _whiten(factor: Tensor, centered: Tensor) -> Tensor:
    """Centered features `[n, e]` times the inverse of the covariance's Cholesky factor."""
    whitened: Tensor = torch.linalg.solve_triangular(factor, centered.T, upper=False)
    return whitened.T.contiguous()
