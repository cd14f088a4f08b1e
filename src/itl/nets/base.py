"""The one surface every network has: named layers in order, the last of them its classifier."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from itl.errors import UserError
from itl.nets.init import initialize


class Net(nn.Module):
    """A network that is a sequence of named layers, `layers[-1]` being its linear classifier.

    Input `[n, channels, height, width]` float, output logits `[n, classes]`. "The last k layers" of the paper are the
    last k of `layers`; what lies between two of them without parameters (the pooling) belongs to the later one.
    """

    layers: tuple[str, ...]
    classifier: nn.Linear
    classifier_name = "classifier"  # its name in the state dict
    # Whether the engine may capture steps, train bf16 copies of the weights and send several batches through at once.
    supports_fused_paths = True

    def forward(self, x: Tensor) -> Tensor:
        """Logits `[n, classes]` of images `[n, channels, height, width]`."""
        logits: Tensor = self.classifier(self.features(x))
        return logits

    def features(self, x: Tensor) -> Tensor:
        """What the classifier sees: `[n, features]`."""
        for name in self.layers[:-1]:
            x = getattr(self, name)(x)
        return x

    def split(self, last: int | None) -> tuple[nn.Sequential, nn.Sequential]:
        """The network as (trunk, head), the head being its last `last` layers (None: all). Parameters are shared."""
        if last is not None and not 1 <= last <= len(self.layers):
            raise UserError(f"this network has {len(self.layers)} layers ({', '.join(self.layers)}), not {last}")
        cut = 0 if last is None else len(self.layers) - last
        parts = [(name, getattr(self, name)) for name in self.layers]
        return nn.Sequential(OrderedDict(parts[:cut])), nn.Sequential(OrderedDict(parts[cut:]))

    def in_last_layers(self, name: str, last: int | None) -> bool:
        """Whether the tangent model moves the head's parameter `name`: all of them, where a head can be cut off."""
        return True

    def validate_input(self, shape: tuple[int, int, int]) -> None:
        """Refuse images that the network cannot take; one that is built for them takes them."""

    def reinitialize(self, generator: torch.Generator) -> None:
        """Begin anew with newly drawn weights (in place)."""
        initialize(self, generator)

    def set_classifier(self, layer: nn.Linear) -> None:
        """Put another classifier in its place."""
        self.classifier = layer

    def reinitialize_classifier(self, generator: torch.Generator) -> None:
        """The half-pipe jump: the classifier, and nothing else, back to a fresh random initialisation (in place)."""
        initialize(self.classifier, generator)

    def grow_classifier(self, classes: int, generator: torch.Generator) -> None:
        """Give the classifier outputs up to `classes`; the old ones keep their weights."""
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
        """Take all outputs but these away from the classifier; they keep their weights, in this order."""
        old, rows = self.classifier, torch.tensor(list(outputs))
        new = nn.Linear(old.in_features, len(rows), bias=old.bias is not None)
        new = new.to(old.weight.device, old.weight.dtype)
        with torch.no_grad():
            new.weight.copy_(old.weight[rows.to(old.weight.device)])
            if old.bias is not None:
                new.bias.copy_(old.bias[rows.to(old.bias.device)])
        self.set_classifier(new)
