"""Nearest class mean on frozen features (Mensink et al., 2013)."""

from __future__ import annotations

import torch
from torch import Tensor

from itl.specialists.feature_statistics import FeatureStatistics


class NearestClassMean(FeatureStatistics):
    """Classifies by the nearest mean of a class's features; −‖φ − μ‖² is linear in φ up to a constant."""

    name = "ncm"
    summary = "nearest class mean on frozen features; keeps no images"
    reference = (
        "Mensink, Verbeek, Perronnin, Csurka: Distance-Based Image Classification: Generalizing to New Classes at "
        "Near-Zero Cost, TPAMI 2013"
    )
    defaults = {"memory.policy": "none", "generalist": "none"}
    class_axes = {"features": 0, "count": 0}

    def accumulate(self, features: Tensor, labels: Tensor) -> None:
        """Sums and counts of each class."""
        self.add_to("features", labels.T.double() @ features.double())
        self.add_to("count", labels.sum(0))

    def solve(self) -> tuple[Tensor, Tensor]:
        """Weight 2 μ and bias −‖μ‖²; a class without images is never the nearest."""
        count = self.sums["count"]
        means = self.sums["features"] / count.clamp(min=1)[:, None]
        bias = torch.where(count > 0, -means.square().sum(1), -1e4)
        return 2 * means, bias
