"""Backbones by name. A new one is a module with `BACKBONES` and one line here, or another package's entry point."""

from __future__ import annotations

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

GROUP = "itl.backbones"  # an entry point of this group refers to a `Backbone`
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
    """

    name: str
    summary: str
    build: Callable[..., Net]
    reference: str = ""
    preprocessing: Preprocessing | None = None
    load_weights: Callable[[Net], None] | None = None
    weights_sha256: str = ""
    weights_installed: Callable[[], bool] | None = None


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
    return list(dict.fromkeys([*_built_in(), *REGISTERED, *plugins.find_all(GROUP)]))


def find(name: str) -> Backbone:
    """The backbone called `name`.

    Raises:
        UserError: If there is no such backbone, or it is a plug-in that cannot be loaded.
    """
    known = {**REGISTERED, **_built_in()}
    if name in known:
        return known[name]
    point = plugins.find_all(GROUP).get(name)
    if point is None:
        raise unknown("backbone", name, names())
    found: Backbone = plugins.load("backbone", point, Backbone)
    return found


def weights_available(name: str) -> bool:
    """Whether the pre-trained weights of a backbone can be loaded without installing anything."""
    backbone = find(name)
    return backbone.weights_installed is not None and backbone.weights_installed()


TRAINED_LAYERS = 1  # of a pre-trained backbone: the classifier
# Distills probabilities: the squared difference of logits diverged on the features of EfficientNet-Lite.
SAFE_PROJECTION = {"projection.loss": "kl", "projection.monitor": True}


def backbone_settings(name: str) -> dict[str, Any]:
    """Settings by dotted name that select a backbone, with its pre-trained weights and a frozen trunk if it has them.

    Raises:
        UserError: If there is no such backbone.
    """
    backbone = find(name)
    if backbone.load_weights is None:
        return {"net.name": name}
    size = {} if backbone.preprocessing is None else {"net.size": backbone.preprocessing.input_size}
    return {
        "net.name": name,
        "net.pretrained": True,
        "net.trained": TRAINED_LAYERS,
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
                "pretrained": backbone.load_weights is not None,
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
) -> Net:
    """Build a network.

    Args:
        name: Name of a backbone, see `names`.
        classes: Number of outputs of the classifier.
        channels: Channels of the images.
        width: Filters of the first layer; None for the backbone's usual width.
        strided: Start with a 7x7 convolution of stride 2 and max-pooling, for images of about 96 pixels or more.
        generator: Source of the initial weights. None: PyTorch's global random state.
        pretrained: Load the backbone's pre-trained weights, except the classifier's.

    Returns:
        The network. It maps float images `[n, channels, height, width]` to logits `[n, classes]`.

    Raises:
        UserError: If there is no such backbone, the width is not positive, or there are no pre-trained weights.
    """
    backbone = find(name)
    if width is not None and width < 1:
        raise UserError(f"the width of a network must be at least 1, not {width}")
    if pretrained and backbone.load_weights is None:
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
    if pretrained and backbone.load_weights is not None:
        backbone.load_weights(net)
        classifier = f"{net.classifier_name}."
        net.initial_state = {n: t.clone() for n, t in net.state_dict().items() if not n.startswith(classifier)}
    return net
