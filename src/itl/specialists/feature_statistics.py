"""Base class of methods that compute a classifier in closed form from sums over a frozen network's features.

The sums do not depend on the order of the samples or tasks, so these methods forget nothing and store no images.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from itl.memory import ModelOutputs
from itl.nets import Net
from itl.settings import SpecialistSettings
from itl.specialists.base import Specialist

SCALES = tuple(math.pow(2.0, k / 2) for k in range(-4, 17))  # candidates for the scale of the logits
MAX_SCALE_SAMPLES = 2000  # the scale is fitted to at most this many samples, evenly spaced
BATCH_SIZE = 2048  # samples whose sums are added at once: an addition in double precision takes long


class FeatureStatistics(Specialist):
    """Accumulates `sums` over the features of every task and computes the classifier from them at the task's end.

    The network must not change between tasks, so it is never trained. Subclasses define `expand`, `accumulate` and
    `solve`. The logits are the subclass's scores times a scale that fits the probabilities to task and memory.

    Attributes:
        class_axes: The axis of each sum that has one entry per output, for those that have one.
        sums: Accumulated tensors by name, float64.
    """

    class_axes: ClassVar[dict[str, int]] = {}
    needs_memory = False
    optimizes = False
    changes_model_at_task_end = True
    forward_batches: ClassVar[float] = 1
    backward_batches: ClassVar[float] = 0

    def __init__(self, settings: SpecialistSettings) -> None:
        super().__init__(settings)
        self.sums: dict[str, Tensor] = {}
        self.weight: Tensor | None = None  # [outputs, expanded features]
        self.bias: Tensor | None = None  # [outputs]

    def network_features(self, net: Net, x: Tensor) -> Tensor:
        """Features float32 `[n, d]` of the network's inputs; computed once per image of a task."""
        return net.features(x).float()

    def expand(self, features: Tensor) -> Tensor:
        """The features `[n, e]` that the classifier uses, given those of the network `[n, d]`."""
        return features

    def accumulate(self, features: Tensor, labels: Tensor) -> None:
        """Add samples to `sums`.

        Args:
            features: Expanded features `[n, e]`, float32.
            labels: One-hot labels `[n, outputs]`, float32.
        """
        raise NotImplementedError

    def solve(self) -> tuple[Tensor, Tensor]:
        """Weight `[outputs, e]` and bias `[outputs]` of the classifier, from `sums`."""
        raise NotImplementedError

    def add_to(self, name: str, value: Tensor) -> None:
        """Add a tensor to `sums[name]`; new outputs add rows to it."""
        value = value.double()
        if name in self.sums:
            old = self.sums[name].to(value.device)
            padding = [
                pair for length in reversed(range(old.ndim)) for pair in (0, value.shape[length] - old.shape[length])
            ]
            value = value + F.pad(old, padding)
        self.sums[name] = value

    @torch.no_grad()
    def on_task_end(self) -> None:
        """Accumulate the task's images and solve for the classifier."""
        outputs = self.context.net.classifier.out_features
        known = self._model_outputs()
        labels = torch.from_numpy(self.context.labels).to(known.task.features.device)
        for features, y in zip(known.task.features.split(BATCH_SIZE), labels.split(BATCH_SIZE), strict=True):
            self.accumulate(self.expand(features), F.one_hot(y, outputs).float())
        weight, bias = self.solve()
        self.weight, self.bias = weight.float(), bias.float()
        features = known.task.features
        if len(self.context.memory):
            features = torch.cat([features, known.stored.features])
            labels = torch.cat([labels, torch.from_numpy(self.context.memory.labels.copy()).to(labels.device)])
        scale = self._best_scale(features, labels)
        self.weight, self.bias = scale * self.weight, scale * self.bias

    def _model_outputs(self) -> ModelOutputs:
        """`network_features` of the task's and the memory's raw images, without logits."""
        context = self.context

        def forward(images: Tensor) -> tuple[Tensor, Tensor]:
            with context.engine.autocast():
                features = self.network_features(context.net.eval(), context.normalize(images))
            return features, features[:, :0]

        return ModelOutputs(forward, context.pool, len(context.labels), context.memory, len(context.memory))

    def _best_scale(self, features: Tensor, labels: Tensor) -> float:
        """The scale of the scores with the smallest cross-entropy, over all classes equally."""
        rows = torch.linspace(0, len(labels) - 1, min(len(labels), MAX_SCALE_SAMPLES)).long().to(labels.device)
        features, labels = features[rows], labels[rows]
        parts = zip(features.split(BATCH_SIZE), labels.split(BATCH_SIZE), strict=True)
        scores = torch.cat([self.held_out_scores(*part) for part in parts])
        weights = 1.0 / torch.bincount(labels, minlength=scores.shape[1]).clamp(min=1).float()
        return min(SCALES, key=lambda scale: float(F.cross_entropy(scale * scores, labels, weights)))

    def held_out_scores(self, features: Tensor, labels: Tensor) -> Tensor:
        """Scores `[n, outputs]` of samples that are in the sums, computed without them if the method can do that.

        Args:
            features: `network_features` of the samples `[n, d]`.
            labels: Their outputs `[n]`.
        """
        return self._scores(features)

    def _scores(self, features: Tensor) -> Tensor:
        assert self.weight is not None
        assert self.bias is not None
        return self.expand(features) @ self.weight.T + self.bias

    def evaluate_logits(self, net: Net, x: Tensor) -> Tensor:
        """The closed-form classifier's logits; unseen classes have a low one."""
        if self.weight is None:
            return net(x)  # type: ignore[no-any-return]
        logits = self._scores(self.network_features(net, x))
        missing = net.classifier.out_features - logits.shape[1]
        return F.pad(logits, (0, missing), value=-1e4) if missing else logits

    def select_outputs(self, outputs: Sequence[int]) -> None:
        """Reduce the sums and the classifier to these outputs; sums over all classes keep the others' samples."""
        for name, axis in self.class_axes.items():
            if name in self.sums:
                index = torch.tensor(list(outputs), device=self.sums[name].device)
                self.sums[name] = self.sums[name].index_select(axis, index)
        if self.weight is not None and self.bias is not None:
            rows = [output for output in outputs if output < len(self.bias)]
            self.weight, self.bias = self.weight[rows], self.bias[rows]

    def state_dict(self) -> dict[str, Tensor]:
        """The sums and the classifier."""
        own = {f"sum.{name}": t for name, t in self.sums.items()}
        if self.weight is not None and self.bias is not None:
            own |= {"weight": self.weight, "bias": self.bias}
        return super().state_dict() | own

    def load_state_dict(self, state: dict[str, Tensor], net: Net) -> None:
        """Restore them."""
        super().load_state_dict(state, net)
        self.sums = {name.removeprefix("sum."): t for name, t in state.items() if name.startswith("sum.")}
        self.weight, self.bias = state.get("weight"), state.get("bias")
