"""Backbones outside this package: `timm:NAME`, `torchvision:NAME`, and `MODULE:FUNCTION` for a user's module."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any

from torch import Tensor, nn

from itl.errors import UserError, unknown
from itl.nets.adapter import ModuleAdapter
from itl.nets.base import Net
from itl.nets.registry import Backbone, Preprocessing
from itl.nets.weights import copy_weights

LIBRARIES = ("timm", "torchvision")
VARIABLE = "ITL_BACKBONES"  # environment variable: names of the form MODULE:FUNCTION that may be imported
FIXED_SIZE = ("vit_", "maxvit")  # torchvision's networks for images of one size
# Their auxiliary classifiers are used by the original training only; the weights expect the transformed input.
WITHOUT_AUXILIARY = {"aux_logits": False, "transform_input": True, "init_weights": False}
TORCHVISION_OPTIONS = {"googlenet": WITHOUT_AUXILIARY, "inception_v3": WITHOUT_AUXILIARY}
_allowed: set[str] = set()


def allow(name: str) -> None:
    """Allow `MODULE:FUNCTION` to be imported: the user has named it, rather than a file that may come from others."""
    _allowed.add(name)


def find(name: str) -> Backbone:
    """The backbone called `timm:NAME`, `torchvision:NAME` or `MODULE:FUNCTION`.

    Raises:
        UserError: If the package is not installed, it has no such network, or a function is not allowed or fails.
    """
    library, _, own_name = name.partition(":")
    if library == "timm":
        return _find_timm(name, own_name)
    if library == "torchvision":
        return _find_torchvision(name, own_name)
    return _find_function(name)


def _import_library(name: str, library: str) -> Any:
    try:
        return import_module(library)
    except ImportError:
        raise UserError(
            f"the backbone {name} needs the package {library}, which is not installed; "
            f"install it: pip install 'itl[{library}]'"
        ) from None


# ------------------------------------------------------------------ timm


def _find_timm(name: str, own_name: str) -> Backbone:
    timm = _import_library(name, "timm")
    if not timm.is_model(own_name):
        raise unknown("backbone", name, [f"timm:{known}" for known in timm.list_models()])
    config = timm.get_pretrained_cfg(own_name)
    pretrained = timm.models.is_model_pretrained(own_name)
    interpolation = "bicubic" if config.interpolation == "bicubic" else "bilinear"
    return Backbone(
        name,
        "a network of timm",
        partial(_build_timm, own_name),
        preprocessing=Preprocessing(tuple(config.mean), tuple(config.std), config.input_size[-1], interpolation),
        load_weights=partial(_load_weights, name, partial(_timm_weights, own_name)) if pretrained else None,
        fixed_size=bool(config.fixed_input_size),
    )


def _build_timm(own_name: str, *, classes: int, channels: int, width: int | None, strided: bool) -> Net:
    timm = import_module("timm")
    return ModuleAdapter(timm.create_model(own_name, num_classes=classes, in_chans=channels))


def _timm_weights(own_name: str) -> Mapping[str, Tensor]:
    model: nn.Module = import_module("timm").create_model(own_name, pretrained=True, num_classes=0)
    return model.state_dict()


# ------------------------------------------------------------------ torchvision


def _find_torchvision(name: str, own_name: str) -> Backbone:
    models = _import_library(name, "torchvision").models
    known = models.list_models(module=models)
    if own_name not in known:
        raise unknown("backbone", name, [f"torchvision:{one}" for one in known])
    weights = getattr(models.get_model_weights(own_name), "DEFAULT", None)
    preprocessing, load_weights = None, None
    if weights is not None:
        transform = weights.transforms()
        size, interpolation = transform.crop_size[0], transform.interpolation.value
        interpolation = "bicubic" if interpolation == "bicubic" else "bilinear"
        preprocessing = Preprocessing(tuple(transform.mean), tuple(transform.std), size, interpolation)
        load_weights = partial(
            _load_weights, name, partial(weights.get_state_dict, progress=False, check_hash=True, weights_only=True)
        )
    return Backbone(
        name,
        "a network of torchvision",
        partial(_build_torchvision, own_name),
        preprocessing=preprocessing,
        load_weights=load_weights,
        fixed_size=own_name.startswith(FIXED_SIZE),
    )


def _build_torchvision(own_name: str, *, classes: int, channels: int, width: int | None, strided: bool) -> Net:
    if channels != 3:
        raise UserError(f"torchvision:{own_name} needs images with 3 channels, not {channels}")
    options = TORCHVISION_OPTIONS.get(own_name, {})
    models = import_module("torchvision").models
    return ModuleAdapter(models.get_model(own_name, weights=None, num_classes=classes, **options))


def _load_weights(name: str, read: Callable[[], Mapping[str, Tensor]], net: Net) -> None:
    """Copy pre-trained weights, which the library downloads unless it has done so before, into a network."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tensors = read()
    except Exception as error:  # the library's code: network, disk, and any format
        reason = (" ".join(str(error).split()) or type(error).__name__)[:120]
        raise UserError(
            f"the weights of {name} cannot be loaded ({reason}); connect to the network once, or give a safetensors "
            "file of them: --weights FILE, or net.weights in Python"
        ) from error
    copy_weights(net, tensors, f"the weights of {name}")


# ------------------------------------------------------------------ a user's module


def _listed() -> list[str]:
    """The names in the environment variable."""
    return [name for one in os.environ.get(VARIABLE, "").split(",") if (name := one.strip())]


def find_listed(name: str) -> Backbone | None:
    """The `Backbone` called `name` among the objects that the environment variable lists; None if there is none.

    So a model whose backbone a script has registered can be used in another process.

    Raises:
        UserError: If there is none, and one of the objects cannot be imported.
    """
    problem = None
    for one in _listed():
        if ":" not in one or one.partition(":")[0] in LIBRARIES:
            continue
        try:
            found = _import_object(one)
        except UserError as error:
            problem = error
        else:
            if isinstance(found, Backbone) and found.name == name:
                return found
    if problem is not None:
        raise problem
    return None


def _import_object(name: str) -> Any:
    """The object `MODULE:NAME`, from a module in the current folder or an installed one."""
    module_name, _, attribute = name.partition(":")
    folder = os.getcwd()
    sys.path.insert(0, folder)  # as for `python FILE`: the module is usually in the current folder
    try:
        return getattr(import_module(module_name), attribute)
    except (Exception, SystemExit) as error:  # user code: any exception is possible, and a script may exit
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(
            f"Unknown backbone '{name}': {reason}; use a name that `itl backbones` lists, timm:NAME, torchvision:NAME, "
            "or MODULE:FUNCTION of a Python module"
        ) from error
    finally:
        with suppress(ValueError):  # the module has removed it
            sys.path.remove(folder)


def _find_function(name: str) -> Backbone:
    if name not in {*_listed(), *_allowed}:
        raise UserError(
            f"the backbone {name} is a user's code, which is not imported unasked; if you trust it, give "
            f"--backbone {name}, or set the environment variable {VARIABLE}={name}"
        )
    found = _import_object(name)
    if isinstance(found, Backbone):
        return found if found.name == name else Backbone(**{**vars(found), "name": name})
    if not callable(found):
        raise UserError(f"the backbone {name} is a {type(found).__name__}, not a function that returns a torch module")
    return Backbone(name, "a module of your own", partial(_build_function, name, found))


def _build_function(
    name: str, function: Callable[[], Any], *, classes: int, channels: int, width: int | None, strided: bool
) -> Net:
    """The module that a function returns, with a classifier of `classes` outputs."""
    try:
        module = function()
    except (Exception, SystemExit) as error:  # user code: any exception is possible, and a script may exit
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"the backbone {name} cannot be built without arguments: {reason}; correct it") from error
    if not isinstance(module, nn.Module):
        raise UserError(f"the backbone {name} returns a {type(module).__name__}, not a torch.nn.Module")
    net = module if isinstance(module, ModuleAdapter) else ModuleAdapter(module)
    old = net.classifier
    if old.out_features != classes:
        net.set_classifier(nn.Linear(old.in_features, classes, bias=old.bias is not None))
        net.keep_as_initial()
    return net
