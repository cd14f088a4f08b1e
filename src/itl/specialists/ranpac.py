"""Random projection and ridge regression on frozen features (McDonnell et al., 2023)."""

from __future__ import annotations

import torch
from torch import Tensor

from itl.engine.keyed_random import torch_generator
from itl.nets import Net
from itl.settings import Count, SpecialistSettings
from itl.specialists.ridge import Ridge, RidgeOptions


class RanPACOptions(RidgeOptions):
    """`width`: number of random features."""

    width: Count = 2000


class RanPAC(Ridge):
    """Ridge regression on relu(φ R) with a fixed random matrix R, which makes the classes easier to separate."""

    name = "ranpac"
    summary = "random features of frozen features, then ridge regression; keeps no images"
    reference = (
        "McDonnell, Gong, Parvaneh, Abbasnejad, van den Hengel: RanPAC: Random Projections and Pre-trained Models for "
        "Continual Learning, NeurIPS 2023"
    )
    defaults = {"memory.policy": "none", "generalist": "none"}
    note = "λ is relative to the variance of the features; the paper selects it on a fifth of each task"
    cross_validates = False  # slow with so many features
    Options = RanPACOptions
    options: RanPACOptions

    def __init__(self, settings: SpecialistSettings) -> None:
        super().__init__(settings)
        self.projection: Tensor | None = None  # [d, width]

    def on_task_start(self) -> None:
        """Draw the projection, keyed by the seed, at the first task."""
        super().on_task_start()
        if self.projection is None:
            inputs = self.context.net.classifier.in_features
            generator = torch_generator(self.context.key[0], "random projection")
            drawn = torch.randn(inputs, self.options.width, generator=generator)
            self.projection = self.context.engine.send(drawn)

    def expand(self, features: Tensor) -> Tensor:
        """relu(φ R)."""
        assert self.projection is not None
        return torch.relu(features @ self.projection)

    def state_dict(self) -> dict[str, Tensor]:
        """The sums, the classifier and the projection."""
        return super().state_dict() | ({} if self.projection is None else {"projection": self.projection})

    def load_state_dict(self, state: dict[str, Tensor], net: Net) -> None:
        """Restore them."""
        super().load_state_dict(state, net)
        self.projection = state.get("projection")
