"""Split a pre-trained network into a frozen trunk and a trained head."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn

from itl.errors import UserError
from itl.nets.adapter import ModuleAdapter
from itl.nets.base import Net
from itl.nets.init import initialize
from itl.nets.module_cut import cut_module
from itl.nets.module_layers import find_layers
from itl.nets.multi_layer_features import PooledFeatures

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
        _fix_batch_norm(self)
        return self


class ModuleHead(ModuleAdapter):
    """The rest of a module that was cut, whose inputs are the trunk's features. Batch norm is fixed, as in a `Head`."""

    def train(self, mode: bool = True) -> ModuleHead:
        """Set the mode of all layers except batch norm, which stays in evaluation mode."""
        super().train(mode)
        _fix_batch_norm(self)
        return self


def _fix_batch_norm(net: Net) -> None:
    for layer in net.modules():
        if isinstance(layer, BATCH_NORMS):
            layer.training = False


def split_frozen(
    net: Net,
    trained: int,
    shape: tuple[int, int, int],
    feature_layers: int = 1,
    generator: torch.Generator | None = None,
    width: int | None = None,
) -> tuple[nn.Module, Head | ModuleHead]:
    """Split a network before its last `trained` layers.

    Args:
        net: The network. Its layers become part of the result.
        trained: Number of layers of the head, the classifier included.
        shape: Shape `(channels, height, width)` of the network's inputs.
        feature_layers: Number of layers whose pooled outputs are the features if `trained` is 1, see `PooledFeatures`.
            1: the classifier's usual input.
        generator: Draws the weights of a classifier with more inputs; None: they will be loaded.
        width: Number of features, if it is known; otherwise the trunk computes the features of two blank images.

    Returns:
        The trunk, in evaluation mode and without gradients, and the head.

    Raises:
        UserError: If the network has fewer layers, or is a module that cannot be cut there.
    """
    if isinstance(net, ModuleAdapter) and trained != 1:
        return _split_module(net, trained, shape)
    head: Head
    trunk: nn.Module
    if trained == 1:
        trunk, classifier = _before_classifier(net, shape, feature_layers, generator, width)
        head = Head(OrderedDict(classifier=classifier))
        head.capturable = True
    else:
        trunk, layers = net.split(trained)
        head = Head(OrderedDict(layers.named_children()))
        head.capturable = net.capturable
    if net.initial_state is not None:
        head.keep_as_initial()
    return trunk.eval().requires_grad_(False), head


def _before_classifier(
    net: Net,
    shape: tuple[int, int, int],
    feature_layers: int,
    generator: torch.Generator | None,
    width: int | None,
) -> tuple[nn.Module, nn.Linear]:
    """The layers before the classifier, and a classifier for the features of the last `feature_layers` of them."""
    classifier = net.classifier
    trunk: nn.Module
    if isinstance(net, ModuleAdapter):
        layers = find_layers(net.module, net.classifier_path)
        net.set_classifier(nn.Identity())  # type: ignore[arg-type]
        trunk = net.module
    else:
        layers = find_layers(net, net.classifier_name)
        trunk = net.split(1)[0]
    if feature_layers == 1:
        return trunk, classifier
    if feature_layers >= len(layers):
        raise UserError(
            f"the network has {len(layers) - 1} layers before the classifier; set net.feature_layers to at most that"
        )
    # The classifier's usual input stands for the last layer.
    trunk = PooledFeatures(trunk, [names[-1] for names in layers[-feature_layers - 1 : -2]])
    weight = classifier.weight
    if width is None:
        with torch.no_grad():
            width = trunk.eval()(weight.new_zeros((2, *shape))).shape[1]
    wide = nn.Linear(width, classifier.out_features, device=weight.device)
    if generator is not None:
        initialize(wide, generator)
    return trunk, wide


def _split_module(net: ModuleAdapter, trained: int, shape: tuple[int, int, int]) -> tuple[nn.Module, ModuleHead]:
    """Split a module of unknown structure before its last `trained` layers."""
    net.split(trained)  # raises if it has fewer layers
    if trained == len(net.layers):
        raise UserError(
            f"the network has {trained} layers, and net.trained={trained} freezes none of them; "
            "set net.trained=null to train all of them"
        )
    trunk, rest = cut_module(net.module, net.layer_modules, trained, shape)
    layers = [[f"module.{name}" for name in names] for names in net.layer_modules[-trained:]]
    head = ModuleHead(rest, f"module.{net.classifier_path}", layers)
    return trunk.eval().requires_grad_(False), head
