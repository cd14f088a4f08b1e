"""A specialist whose model is the mean of its weights over its last steps (Polyak, Juditsky, 1992)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from itl.engine.batches import num_batches
from itl.nets import Net
from itl.settings import Momentum
from itl.specialists.base import Batch, Options, Specialist
from itl.specialists.model_copies import copy_into, lean, twin


class Averaging(Options):
    """`average` is the share of itself that the mean of the weights keeps at each step: 0.999 looks about a thousand
    steps back. 0: there is no mean, the network is what its last step made of it.
    """

    average: Momentum = 0.0


class Averaged(Specialist):
    """The network is trained as ever; where `average` asks for it, what is evaluated, and what a generalist starts
    from, is the mean of its weights and of its batch norms' statistics.

    At a constant learning rate the last step's weights are noisy: the mean is not. It begins anew with every task; as
    long as it is younger than it looks back, all steps of the task count the same.
    """

    Options = Averaging
    options: Averaging

    def task_starts(self) -> None:
        """The mean has seen no step yet."""
        if self.options.average:
            self.twins["mean"] = twin(self.context.net)

    def epoch_starts(self, index: int) -> None:
        """How many steps of the task the mean has seen."""
        self.seen = index * num_batches(len(self.context.labels), self.settings.batch)

    def inputs(self, rng: np.random.Generator, steps: int, first: int) -> dict[str, np.ndarray]:
        """How much of itself the mean keeps at each step: nothing at the task's first."""
        if not self.options.average:
            return {}
        count = self.seen + np.arange(steps)
        return {"keep": np.minimum(count / (count + 1), self.options.average).astype(np.float32)}

    def after_step(self, net: nn.Module, now: Batch, pasts: tuple[Batch, ...]) -> None:
        """θ_mean ← keep θ_mean + (1 − keep) θ."""
        if self.options.average:
            lean(self.changed(), floats(net), now.extra["keep"])

    def changed(self) -> list[Tensor]:
        """The mean and its statistics."""
        return floats(self.twins["mean"]) if self.options.average else []

    def logits(self, net: Net, x: Tensor) -> Tensor:
        """The mean's."""
        return self.twins["mean"](x) if "mean" in self.twins else super().logits(net, x)  # type: ignore[no-any-return]

    def hand_over(self, net: Net) -> bool:
        """A generalist starts from the mean."""
        if "mean" in self.twins:
            copy_into(net, self.twins["mean"])
        return "mean" in self.twins

    def take_back(self, net: Net) -> None:
        """The expert is what counts now."""
        self.twins.clear()


def floats(net: nn.Module) -> list[Tensor]:
    """Weights and statistics, without what counts batches."""
    return [t for t in net.state_dict().values() if torch.is_floating_point(t)]
