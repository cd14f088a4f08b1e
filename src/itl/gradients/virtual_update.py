"""A network at weights it might have: one descent step ahead, without taking it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge
from torch.func import functional_call

Weights = dict[str, Tensor]


def present(net: nn.Module) -> Weights:
    """The weights as they are, in float32 (or finer, where they are) and cut off from the network's own."""
    return {
        name: p.detach().to(torch.promote_types(p.dtype, torch.float32)).requires_grad_()
        for name, p in net.named_parameters()
    }


def said(net: nn.Module, weights: Weights, x: Tensor) -> Tensor:
    """Logits `[n, classes]` at these weights, in full precision."""
    with torch.autocast(x.device.type, enabled=False):
        return functional_call(net, weights, (x,))  # type: ignore[no-any-return]


def gradients(loss: Tensor, by: Sequence[Tensor | GradientEdge]) -> tuple[Tensor, ...]:
    """Of a loss; zeros by what it does not hang on, as a user's network may keep frozen weights that it never uses."""
    return torch.autograd.grad(loss, by, allow_unused=True, materialize_grads=True)  # type: ignore[arg-type]


def judged(net: nn.Module, weights: Weights, x: Tensor, y: Tensor) -> tuple[Tensor, Weights]:
    """The mean cross-entropy of a batch at these weights, and its gradient by them."""
    loss = F.cross_entropy(said(net, weights, x), y)
    return loss.detach(), dict(zip(weights, gradients(loss, list(weights.values())), strict=True))


def descended(weights: Weights, gradient: Weights, lr: float) -> Weights:
    """The weights after a step against a gradient, to be differentiated by in their turn."""
    return {name: (w - lr * gradient[name]).detach().requires_grad_() for name, w in weights.items()}


def stepped(net: nn.Module, weights: Weights, x: Tensor, y: Tensor, lr: float) -> Weights:
    """The weights after a step on the mean cross-entropy of a batch."""
    return descended(weights, judged(net, weights, x, y)[1], lr)
