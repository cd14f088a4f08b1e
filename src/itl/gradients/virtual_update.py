"""Evaluation of a network at other weights, such as those after a gradient step that is not applied."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge
from torch.func import functional_call

Weights = dict[str, Tensor]


def detached_weights(net: nn.Module) -> Weights:
    """The network's weights as new leaf tensors, in float32 at least."""
    return {
        name: p.detach().to(torch.promote_types(p.dtype, torch.float32)).requires_grad_()
        for name, p in net.named_parameters()
    }


def logits_at(net: nn.Module, weights: Weights, x: Tensor) -> Tensor:
    """Logits `[n, classes]` of the network at `weights`, without autocast."""
    with torch.autocast(x.device.type, enabled=False):
        return functional_call(net, weights, (x,))  # type: ignore[no-any-return]


def gradients_or_zeros(loss: Tensor, inputs: Sequence[Tensor | GradientEdge]) -> tuple[Tensor, ...]:
    """Gradients of `loss`; zero for inputs it does not depend on, such as a user's frozen, unused weights."""
    return torch.autograd.grad(loss, inputs, allow_unused=True, materialize_grads=True)  # type: ignore[arg-type]


def loss_and_gradient(net: nn.Module, weights: Weights, x: Tensor, y: Tensor) -> tuple[Tensor, Weights]:
    """The mean cross-entropy of a batch at `weights`, and its gradient."""
    loss = F.cross_entropy(logits_at(net, weights, x), y)
    return loss.detach(), dict(zip(weights, gradients_or_zeros(loss, list(weights.values())), strict=True))


def gradient_step(weights: Weights, gradient: Weights, lr: float) -> Weights:
    """The weights after one step of gradient descent, as new leaf tensors."""
    return {name: (w - lr * gradient[name]).detach().requires_grad_() for name, w in weights.items()}


def virtual_step(net: nn.Module, weights: Weights, x: Tensor, y: Tensor, lr: float) -> Weights:
    """The weights after one step of gradient descent on the mean cross-entropy of a batch."""
    return gradient_step(weights, loss_and_gradient(net, weights, x, y)[1], lr)
