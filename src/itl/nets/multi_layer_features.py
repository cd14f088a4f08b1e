"""Features of several layers of a frozen network, in place of the last layer's alone."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

EPSILON = 1e-5


class PooledFeatures(nn.Module):
    """The pooled outputs of some layers and the network's own features, side by side.

    Each part is standardized over its channels, so that no layer outweighs the others and no statistics of the data
    are needed.

    Args:
        network: Maps images to features `[n, d]`.
        layers: Dotted names of the layers whose outputs are pooled, in the order of the forward pass.
    """

    def __init__(self, network: nn.Module, layers: Sequence[str]) -> None:
        super().__init__()
        self.network, self.layers = network, tuple(layers)

    def forward(self, x: Tensor) -> Tensor:
        """Features `[n, d₁ + d₂ + … + d]` of images `[n, c, h, w]`."""
        outputs: list[Tensor] = []
        hooks = [
            self.network.get_submodule(name).register_forward_hook(lambda _, __, output: outputs.append(output))
            for name in self.layers
        ]
        try:
            own = self.network(x)
        finally:
            for hook in hooks:
                hook.remove()
        parts = [*(pool(output) for output in outputs), own]
        return torch.cat([_standardize(part) for part in parts], 1)


def _standardize(x: Tensor) -> Tensor:
    """Layer normalization of `[n, c]`, in operations that an export with any batch size knows."""
    centered = x - x.mean(1, keepdim=True)
    return centered * (centered.square().mean(1, keepdim=True) + EPSILON).rsqrt()


def pool(output: Tensor) -> Tensor:
    """The mean `[n, c]` over positions of a layer's output: `[n, c, h, w]`, `[n, tokens, c]` or `[n, h, w, c]`.

    Square maps whose channels come last are recognized by their shape.
    """
    if output.ndim == 4:
        channels_last = output.shape[1] == output.shape[2] != output.shape[3]
        return output.mean((1, 2) if channels_last else (2, 3))
    return output.mean(1) if output.ndim == 3 else output.flatten(1)
