"""PyTorch's default initialization, drawn from a given generator instead of the global random state."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@torch.no_grad()
def initialize(module: nn.Module, generator: torch.Generator) -> None:
    """Initialize a module and its submodules in place, in the order of PyTorch's constructors.

    Args:
        module: Any module. Layers that this function does not know are initialized by their `reset_parameters`.
        generator: A CPU generator; every device gets the same values.
    """
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            fan_in = layer.weight[0].numel()
            bound = 1 / math.sqrt(fan_in)  # kaiming_uniform_ with a = sqrt(5)
            _uniform(layer.weight, bound, generator)
            if layer.bias is not None:
                _uniform(layer.bias, bound, generator)
        elif isinstance(layer, nn.BatchNorm2d | nn.LayerNorm):
            layer.reset_parameters()  # ones and zeros, nothing random
        elif hasattr(layer, "reset_parameters"):
            with seeded(int(torch.randint(2**62, (), generator=generator))):
                layer.reset_parameters()  # type: ignore[operator]


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed PyTorch's global CPU generator within the block, and restore its state afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def _uniform(tensor: torch.Tensor, bound: float, generator: torch.Generator) -> None:
    """Fill with U(-bound, bound), drawn on the CPU so that every device gets the same values."""
    values = torch.empty(tensor.shape, dtype=torch.float32).uniform_(-bound, bound, generator=generator)
    tensor.copy_(values)
