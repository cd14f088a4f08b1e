"""Backbones by name: those of the modules listed here, and those that other packages offer by an entry point."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from importlib import import_module
from typing import Any

import torch

from itl import plugins
from itl.errors import UserError, unknown
from itl.nets.base import Net
from itl.nets.init import seeded
from itl.nets.weights import load_backbone_weights

ENTRY_POINT_GROUP = "itl.backbones"  # an entry point of this group refers to a `Backbone`
EXTERNAL = "itl.nets.external"  # backbones of other libraries
MODULES = ("itl.nets.resnet", "itl.nets.efficientnet_lite")  # each has a sequence `BACKBONES`


@dataclass(frozen=True)
class Preprocessing:
    """What a pre-trained backbone expects of its input: square images, normalized per channel.

    Attributes:
        mean: Mean of each channel, for pixel values from 0 to 1.
        std: Standard deviation of each channel.
        input_size: Height and width in pixels.
        interpolation: How images of another size are resized: "bilinear" or "bicubic".
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    input_size: int
    interpolation: str = "bilinear"


@dataclass(frozen=True)
class Backbone:
    """A network that the setting `net.name` can name.

    Attributes:
        name: The name.
        summary: One line for listings.
        build: Called with the keyword arguments `classes`, `channels`, `width` (None for the backbone's usual width)
            and `strided` (whether the images are large, about 96 pixels or more). Returns a `Net` with random weights:
            a subclass of `Net`, or any torch module in a `ModuleAdapter`.
        reference: Authors, title, venue and year of the publication.
        preprocessing: What its pre-trained weights expect of the input. None: the stream's mean and standard deviation,
            and images of any size.
        load_weights: Loads pre-trained weights into a network that `build` returned. None if there are none.
        weights_sha256: Hash of the file of pre-trained weights, recorded with every model that uses them.
        weights_installed: Whether the weights are on this machine; None if that is unknown.
        weights_file: A safetensors file of pre-trained weights, in place of `load_weights`. It is refused if its hash
            is not `weights_sha256`, unless that is "".
        feature_layers: Number of layers whose pooled outputs are the features of the frozen network, see
            `itl.nets.multi_layer_features`. It suits its pre-trained weights; 1: the classifier's usual input.
        fixed_size: Whether images must have the size that `preprocessing` names, as for most vision transformers.
    """

    name: str
    summary: str
    build: Callable[..., Net]
    reference: str = ""
    preprocessing: Preprocessing | None = None
    load_weights: Callable[[Net], None] | None = None
    weights_sha256: str = ""
    weights_installed: Callable[[], bool] | None = None
    weights_file: str | os.PathLike[str] | None = None
    feature_layers: int = 1
    fixed_size: bool = False

    @property
    def has_weights(self) -> bool:
        """Whether there are pre-trained weights."""
        return self.load_weights is not None or self.weights_file is not None


REGISTERED: dict[str, Backbone] = {}


def register(backbone: Backbone) -> Backbone:
    """Make a backbone known under its name for the rest of the process.

    Use this in a notebook or a script. A package should offer its backbones by the entry point group `itl.backbones`.
    """
    if backbone.name in _built_in():
        raise UserError(f"there is already a backbone '{backbone.name}'; choose another name")
    REGISTERED[backbone.name] = backbone
    return backbone


@cache
def _built_in() -> dict[str, Backbone]:
    return {backbone.name: backbone for module in MODULES for backbone in import_module(module).BACKBONES}


def names() -> list[str]:
    """Names of all backbones: this package's, registered ones, then plug-ins. Plug-ins are not imported."""
    return list(dict.fromkeys([*_built_in(), *REGISTERED, *plugins.find_all(ENTRY_POINT_GROUP)]))


def find(name: str) -> Backbone:
    """The backbone called `name`: one of `names`, `timm:NAME`, `torchvision:NAME`, or `MODULE:FUNCTION`.

    A function is imported only if the user has named it (`backbone_settings`) or the environment variable
    `ITL_BACKBONES` lists it. A `Backbone` that this variable lists is also known by its own name.

    Raises:
        UserError: If there is no such backbone, its package is not installed, or it cannot be loaded.
    """
    known = {**REGISTERED, **_built_in()}
    if name in known:
        return known[name]
    point = plugins.find_all(ENTRY_POINT_GROUP).get(name)
    if point is None and ":" in name:
        external: Backbone = import_module(EXTERNAL).find(name)
        return external
    if point is None:
        listed: Backbone | None = import_module(EXTERNAL).find_listed(name)
        if listed is None:
            raise unknown("backbone", name, names())
        return listed
    found: Backbone = plugins.load("backbone", point, Backbone)
    return found


def weights_available(name: str) -> bool:
    """Whether the pre-trained weights of a backbone can be loaded without installing anything."""
    backbone = find(name)
    return backbone.weights_installed is not None and backbone.weights_installed()


TRAINED_LAYERS = 1  # of a pre-trained backbone: the classifier
# Distills probabilities: the squared difference of logits diverged on the features of EfficientNet-Lite.
SAFE_PROJECTION = {"projection.loss": "kl", "projection.monitor": True}


def find_named(name: str) -> Backbone:
    """The backbone called `name`, which the user has named: `MODULE:FUNCTION` is imported.

    Raises:
        UserError: If there is no such backbone.
    """
    if ":" in name:
        import_module(EXTERNAL).allow(name)
    return find(name)


def fixed_input_size(name: str) -> int | None:
    """Height and width that the images of a backbone must have; None if any will do."""
    backbone = find(name)
    return backbone.preprocessing.input_size if backbone.fixed_size and backbone.preprocessing else None


def backbone_settings(name: str, weights: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """Settings by dotted name that select a backbone, with its pre-trained weights and a frozen trunk if it has them.

    Args:
        name: Name of the backbone.
        weights: A safetensors file of pre-trained weights, in place of the backbone's own. The networks of this package
            that have none of their own, the ResNets, are trained as a whole.

    Raises:
        UserError: If there is no such backbone.
    """
    backbone = find_named(name)
    file = {} if weights is None else {"net.weights": os.fspath(weights)}
    if not backbone.has_weights and not (file and ":" in name):
        return {"net.name": name, **file}
    size = {} if backbone.preprocessing is None else {"net.size": backbone.preprocessing.input_size}
    return {
        "net.name": name,
        **file,
        "net.pretrained": True,
        "net.trained": TRAINED_LAYERS,
        "net.feature_layers": backbone.feature_layers,
        "tangent.layers": TRAINED_LAYERS,
        **SAFE_PROJECTION,
        **size,
    }


def describe() -> list[dict[str, Any]]:
    """Name, summary, reference, preprocessing and `pretrained` of each backbone.

    A plug-in that cannot be loaded is left out with a warning.
    """
    rows = []
    for name in names():
        try:
            backbone = find(name)
        except UserError as error:
            warnings.warn(str(error), stacklevel=2)
            continue
        rows.append(
            {
                "name": name,
                "summary": backbone.summary,
                "reference": backbone.reference,
                "preprocessing": asdict(backbone.preprocessing) if backbone.preprocessing else None,
                "pretrained": backbone.has_weights,
            }
        )
    return rows


def build(
    name: str,
    classes: int,
    *,
    channels: int = 3,
    width: int | None = None,
    strided: bool = False,
    generator: torch.Generator | None = None,
    pretrained: bool = False,
    weights: str | None = None,
) -> Net:
    """Build a network.

    Args:
        name: Name of a backbone, see `find`.
        classes: Number of outputs of the classifier.
        channels: Channels of the images.
        width: Filters of the first layer; None for the backbone's usual width.
        strided: Start with a 7x7 convolution of stride 2 and max-pooling, for images of about 96 pixels or more.
        generator: Source of the initial weights. None: PyTorch's global random state.
        pretrained: Load the backbone's pre-trained weights, except the classifier's.
        weights: Load this safetensors file in their place.

    Returns:
        The network. It maps float images `[n, channels, height, width]` to logits `[n, classes]`.

    Raises:
        UserError: If there is no such backbone, the width is not positive, or the weights are missing or do not fit.
    """
    backbone = find(name)
    if width is not None and width < 1:
        raise UserError(f"the width of a network must be at least 1, not {width}")
    if pretrained and not backbone.has_weights and weights is None:
        raise UserError(f"the backbone {name} has no pre-trained weights")
    options = {"classes": classes, "channels": channels, "width": width, "strided": strided}
    if generator is None:
        net = backbone.build(**options)
    else:
        with seeded(generator.initial_seed()):  # for modules that initialize themselves, such as a `ModuleAdapter`'s
            net = backbone.build(**options)
    if not isinstance(net, Net):
        raise UserError(f"the backbone {name} builds a {type(net).__name__}; wrap it in an itl.nets.ModuleAdapter")
    if generator is not None:
        net.reinitialize(generator)
    if pretrained or weights is not None:
        _load_weights(backbone, net, weights)
        net.keep_as_initial()
    return net


def _load_weights(backbone: Backbone, net: Net, weights: str | None) -> None:
    if weights is not None:
        load_backbone_weights(net, weights)
    elif backbone.weights_file is not None:
        load_backbone_weights(net, backbone.weights_file, backbone.weights_sha256)
    elif backbone.load_weights is not None:
        backbone.load_weights(net)
