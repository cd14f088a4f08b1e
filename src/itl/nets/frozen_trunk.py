"""Split a pre-trained network into a frozen trunk and a trained head."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn

from itl.errors import UserError
from itl.nets.adapter import ModuleAdapter
from itl.nets.base import Net

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class Head(Net):
    """The last layers of a network, as a network whose inputs are the trunk's features.

    Batch norm keeps the statistics of the pre-trained weights: a task with few images cannot estimate better ones.

    Args:
        layers: The layers by name, in order; the last one is the classifier.
    """

    def __init__(self, layers: OrderedDict[str, nn.Module]) -> None:
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)
        self.layers = tuple(layers)

    def train(self, mode: bool = True) -> Head:
        """Set the mode of all layers except batch norm, which stays in evaluation mode."""
        super().train(mode)
        for layer in self.modules():
            if isinstance(layer, BATCH_NORMS):
                layer.training = False
        return self


def split_frozen(net: Net, trained: int) -> tuple[nn.Module, Head]:
    """Split a network before its last `trained` layers.

    Args:
        net: The network. Its layers become part of the result.
        trained: Number of layers of the head, the classifier included.

    Returns:
        The trunk, in evaluation mode and without gradients, and the head.

    Raises:
        UserError: If the network has fewer layers, or a module of unknown structure is to be split elsewhere than
            before its classifier.
    """
    head: Head
    trunk: nn.Module
    if isinstance(net, ModuleAdapter):
        if trained != 1:
            raise UserError(
                f"a {type(net.module).__name__} can be split before its classifier only; set net.trained=1, or "
                "net.trained=null to train all of it"
            )
        head = Head(OrderedDict(classifier=net.classifier))
        net.set_classifier(nn.Identity())  # type: ignore[arg-type]
        trunk = net.module
    else:
        trunk, layers = net.split(trained)
        head = Head(OrderedDict(layers.named_children()))
    head.initial_state = _without_classifier(head) if net.initial_state is not None else None
    return trunk.eval().requires_grad_(False), head


def _without_classifier(net: Net) -> dict[str, torch.Tensor]:
    state = net.state_dict()
    return {n: t.detach().clone() for n, t in state.items() if not n.startswith(f"{net.classifier_name}.")}
