"""The interface of every network: named layers in order, of which the last is the classifier."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from itl.errors import UserError
from itl.nets.init import initialize


class Net(nn.Module):
    """A sequence of named layers that maps images to logits.

    A subclass creates the layers as submodules, `self.classifier` among them, and sets `layers`. The paper's "last k
    layers" are the last k of `layers`; parameter-free modules such as pooling must be part of one of them.

    Attributes:
        layers: Names of the layers in the order of the forward pass. The last one is the classifier.
        classifier: The last layer, a `torch.nn.Linear`.
        classifier_name: The classifier's name in the state dict.
        supports_fused_paths: Whether the engine may capture training steps, train bf16 copies of the weights and send
            several batches through one forward pass. This requires that every layer is one of this package's (they keep
            the statistics of such batches apart), so it is False unless a subclass knows better.
        capturable: Whether a training step without these fused paths can be captured: no layer draws random numbers or
            waits for the device.
        initial_state: Pre-trained tensors that `reinitialize` restores, without the classifier's; None: random.
    """

    layers: tuple[str, ...]
    classifier: nn.Linear
    classifier_name = "classifier"
    supports_fused_paths = False
    capturable = False
    initial_state: dict[str, Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Logits `[n, classes]` of images `[n, channels, height, width]`."""
        logits: Tensor = self.classifier(self.features(x))
        return logits

    def features(self, x: Tensor) -> Tensor:
        """The classifier's input `[n, features]` for images `[n, channels, height, width]`."""
        for name in self.layers[:-1]:
            x = getattr(self, name)(x)
        return x

    def split(self, last: int | None) -> tuple[nn.Sequential, nn.Sequential]:
        """Split the network after some layer. The parts share the network's parameters.

        Args:
            last: Number of layers in the head; None for all.

        Returns:
            The trunk and the head.

        Raises:
            UserError: If the network has fewer layers.
        """
        if last is not None and not 1 <= last <= len(self.layers):
            raise UserError(f"this network has {len(self.layers)} layers ({', '.join(self.layers)}), not {last}")
        cut = 0 if last is None else len(self.layers) - last
        parts = [(name, getattr(self, name)) for name in self.layers]
        return nn.Sequential(OrderedDict(parts[:cut])), nn.Sequential(OrderedDict(parts[cut:]))

    def in_last_layers(self, name: str, last: int | None) -> bool:
        """Whether `name`, a parameter of the head that `split(last)` returns, is in the last `last` layers."""
        return True

    def validate_input(self, shape: tuple[int, int, int]) -> None:
        """Raise a `UserError` if the network cannot take images of `shape` `(channels, height, width)`."""

    def reinitialize(self, generator: torch.Generator) -> None:
        """Reset all weights to a new random initialization, in place; pre-trained weights are restored instead."""
        if self.initial_state is None:
            initialize(self, generator)
            return
        self.load_state_dict(self.initial_state, strict=False)
        initialize(self.classifier, generator)

    def keep_as_initial(self) -> None:
        """Let `reinitialize` restore the present weights, except the classifier's."""
        self.set_initial_state({n: t.detach().clone() for n, t in self.state_dict().items()})

    def set_initial_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Let `reinitialize` restore these tensors of the state dict, except the classifier's."""
        self.initial_state = {n: t for n, t in tensors.items() if not n.startswith(f"{self.classifier_name}.")}

    def set_classifier(self, layer: nn.Linear) -> None:
        """Replace the classifier."""
        self.classifier = layer

    def reinitialize_classifier(self, generator: torch.Generator) -> None:
        """Reset the classifier to a new random initialization, in place: the half-pipe."""
        initialize(self.classifier, generator)

    def grow_classifier(self, classes: int, generator: torch.Generator) -> None:
        """Add randomly initialized outputs to the classifier until it has `classes`; the others keep their weights."""
        old = self.classifier
        if classes <= old.out_features:
            return
        new = nn.Linear(old.in_features, classes, bias=old.bias is not None)
        initialize(new, generator)
        new = new.to(old.weight.device, old.weight.dtype)
        with torch.no_grad():
            new.weight[: old.out_features] = old.weight
            if old.bias is not None:
                new.bias[: old.out_features] = old.bias
        self.set_classifier(new)

    def select_outputs(self, outputs: Sequence[int]) -> None:
        """Reduce the classifier to these outputs, in this order; they keep their weights."""
        old, rows = self.classifier, torch.tensor(list(outputs))
        new = nn.Linear(old.in_features, len(rows), bias=old.bias is not None)
        new = new.to(old.weight.device, old.weight.dtype)
        with torch.no_grad():
            new.weight.copy_(old.weight[rows.to(old.weight.device)])
            if old.bias is not None:
                new.bias.copy_(old.bias[rows.to(old.bias.device)])
        self.set_classifier(new)
