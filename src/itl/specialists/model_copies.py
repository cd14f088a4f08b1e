"""Copies of the network that a method needs: a snapshot to distill from, an average over its steps."""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import Tensor, nn

from itl.nets import Net

Module = TypeVar("Module", bound=nn.Module)


def frozen_copy(net: Module) -> Module:
    """A copy of `net` in evaluation mode, with gradients disabled."""
    out = copy.deepcopy(net).eval()
    for p in out.parameters():
        p.requires_grad_(False)
        p.grad = None
    return out


def restore_copy(net: Net, state: dict[str, Tensor]) -> Net:
    """A frozen copy of `net` with a saved state, whose classifier may have fewer outputs than `net` has now."""
    out = frozen_copy(net)
    old = out.classifier
    rows = len(state[f"{out.classifier_name}.weight"])
    if rows != old.out_features:
        new = nn.Linear(old.in_features, rows, bias=old.bias is not None, device=old.weight.device)
        out.set_classifier(new.requires_grad_(False))
    out.load_state_dict(state)
    return out


@torch.no_grad()
def grow_outputs(model_copy: Net, net: Net) -> None:
    """Add the outputs that `net` gained since `model_copy` was made, with the weights they have in `net`."""
    old, new = model_copy.classifier, net.classifier
    if old.out_features < new.out_features:
        model_copy.set_classifier(copy.deepcopy(new).requires_grad_(False))
        model_copy.classifier.weight[: old.out_features] = old.weight
        if old.bias is not None:
            model_copy.classifier.bias[: old.out_features] = old.bias


def ema_update_(averages: list[Tensor], values: list[Tensor], decay: Tensor) -> None:
    """Update exponential moving averages in place: average ← decay × average + (1 − decay) × value.

    `decay` is a scalar on the device, so that a captured step can change it.
    """
    torch._foreach_mul_(averages, decay)
    torch._foreach_add_(averages, list(torch._foreach_mul(values, 1 - decay)))


@torch.no_grad()
def copy_weights_(net: Net, source: Net) -> None:
    """Copy the weights and statistics of `source` into `net`, in place."""
    for target, value in zip(net.state_dict().values(), source.state_dict().values(), strict=True):
        target.copy_(value)
