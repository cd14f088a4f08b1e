"""PyTorch's default initialisation, drawn from a given generator instead of the process's hidden random state."""

from __future__ import annotations

import math

import torch
from torch import nn


@torch.no_grad()
def initialize(module: nn.Module, generator: torch.Generator) -> None:
    """Initialise `module` and all below it (in place), in the order in which PyTorch's constructors would."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            fan_in = layer.weight[0].numel()
            bound = 1 / math.sqrt(fan_in)  # kaiming_uniform_ with a = sqrt(5)
            _uniform(layer.weight, bound, generator)
            if layer.bias is not None:
                _uniform(layer.bias, bound, generator)
        elif isinstance(layer, nn.BatchNorm2d):
            layer.reset_parameters()  # ones and zeros: nothing is drawn
        elif isinstance(layer, nn.LayerNorm):
            layer.reset_parameters()


def _uniform(tensor: torch.Tensor, bound: float, generator: torch.Generator) -> None:
    """Fill with U(-bound, bound), drawn on the CPU so that every device gets the same numbers."""
    values = torch.empty(tensor.shape, dtype=torch.float32).uniform_(-bound, bound, generator=generator)
    tensor.copy_(values)
