"""Copies of the network that a method keeps beside it: the snapshot it distils from, an average over its steps."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from itl.nets import Net


def twin(net: Net) -> Net:
    """A copy of `net`, in evaluation mode, whose weights no gradient reaches."""
    out = copy.deepcopy(net).eval()
    for p in out.parameters():
        p.requires_grad_(False)
        p.grad = None
    return out


def restore_twin(net: Net, state: dict[str, Tensor]) -> Net:
    """A twin with a saved state; its classifier may have fewer outputs than the network has by now."""
    out = twin(net)
    old = out.classifier
    rows = len(state[f"{out.classifier_name}.weight"])
    if rows != old.out_features:
        new = nn.Linear(old.in_features, rows, bias=old.bias is not None, device=old.weight.device)
        out.set_classifier(new.requires_grad_(False))
    out.load_state_dict(state)
    return out


@torch.no_grad()
def widen(out: Net, net: Net) -> None:
    """Give a twin the outputs that the network has gained since; they begin with the network's own weights."""
    old, new = out.classifier, net.classifier
    if old.out_features < new.out_features:
        out.set_classifier(copy.deepcopy(new).requires_grad_(False))
        out.classifier.weight[: old.out_features] = old.weight
        if old.bias is not None:
            out.classifier.bias[: old.out_features] = old.bias


def lean(theirs: list[Tensor], ours: list[Tensor], keep: Tensor) -> None:
    """An average goes on, in place: its share `keep` (a number on the device) of itself, the rest of `ours`."""
    torch._foreach_mul_(theirs, keep)
    torch._foreach_add_(theirs, list(torch._foreach_mul(ours, 1 - keep)))


@torch.no_grad()
def copy_into(net: Net, source: Net) -> None:
    """Weights and statistics of `source` into `net`, in place."""
    for place, value in zip(net.state_dict().values(), source.state_dict().values(), strict=True):
        place.copy_(value)
