"""A network at weights it might have: one descent step ahead, without taking it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

Weights = dict[str, Tensor]


def present(net: nn.Module) -> Weights:
    """The weights as they are, in float32 and cut off from the network's own."""
    return {name: p.detach().float().requires_grad_() for name, p in net.named_parameters()}


def said(net: nn.Module, weights: Weights, x: Tensor) -> Tensor:
    """Logits `[n, classes]` at these weights, in full precision."""
    with torch.autocast(x.device.type, enabled=False):
        return functional_call(net, weights, (x,))  # type: ignore[no-any-return]


def stepped(net: nn.Module, weights: Weights, x: Tensor, y: Tensor, lr: float) -> Weights:
    """The weights after a step on the mean cross-entropy of a batch."""
    loss = F.cross_entropy(said(net, weights, x), y)
    grads = torch.autograd.grad(loss, list(weights.values()))
    return {name: (w - lr * g).detach().requires_grad_() for (name, w), g in zip(weights.items(), grads, strict=True)}
