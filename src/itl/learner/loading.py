"""Loads learners from their saved state."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from itl._deprecated import update_saved_settings
from itl.callbacks.base import Callback
from itl.checkpoint import store
from itl.checkpoint.learner_state import LearnerState, restore_memory
from itl.engine.device import MAX_THREADS
from itl.errors import UserError
from itl.learner.builder import Configuration, PretrainedBackbone, SavedNetwork
from itl.learner.learner import Learner
from itl.learner.stage_state import STAGES, StageState
from itl.nets import ModuleAdapter, split_frozen
from itl.nets import find as find_backbone
from itl.nets import names as backbone_names
from itl.settings import flatten
from itl.streams import Images, Traits

MAX_COPIES = 32  # no method keeps more tensors of the network's size, in training or between lessons
MAX_ROUNDS = 10**9  # no stage has more; a larger number means that the folder is damaged


def load_learner(
    folder: str | os.PathLike[str],
    *,
    device: str = "auto",
    settings: Mapping[str, Any] | None = None,
    callback: Callback | None = None,
    net: nn.Module | None = None,
) -> Learner:
    """Load the learner that `Learner.save` wrote into a folder, to predict or to continue learning.

    Args:
        folder: A model folder.
        device: "auto", "cpu", "cuda" or "cuda:N".
        settings: Values by dotted name that override the saved settings.
        callback: Called during training.
        net: Module with the structure of the network, for a learner that was created with `net`. The weights are loaded
            from the folder. The methods `gdumb` and `joint` start every task from the weights of this module.

    Returns:
        The learner, at the position where it was saved.

    Raises:
        UserError: The folder is damaged, or has no learner that this version can read.
    """
    state = LearnerState.read(folder, partial(max_tensor_bytes, source=folder, net=net))
    return learner_from_state(state, folder, device=device, settings=settings, callback=callback, net=net)


def learner_from_state(
    state: LearnerState,
    source: str | os.PathLike[str],
    *,
    device: str = "auto",
    settings: Mapping[str, Any] | None = None,
    callback: Callback | None = None,
    net: nn.Module | None = None,
) -> Learner:
    """Build the learner that `Learner.get_state` described.

    Args:
        state: The state.
        source: Where the state comes from, for error messages.
        device: As in `load_learner`, like the remaining arguments.
        settings: Settings that override the saved ones.
        callback: Called during training.
        net: Module with the structure of the network.

    Raises:
        UserError: The state does not describe a learner that this version can build.
    """
    try:
        values = state.metadata
        own_net = _adapt_module(source, values["network"], net)
        saved_settings = update_saved_settings(values["settings"])
        if own_net is None:
            _find_backbone(source, saved_settings)
        arguments = (values["method"], values["buffer"], values["seed"], values["classes"])
        try:
            saved = Learner(*arguments, settings=saved_settings, net=own_net)
            _check_sizes(state, saved.configuration)
        except UserError as error:  # caused by the folder's content, not by the caller's arguments
            raise ValueError(str(error)) from None
        merged = {**saved_settings, **flatten(settings or {})}
        learner = Learner(*arguments, settings=merged, device=device, callback=callback, net=own_net)
        _check_numbers(state)
        traits: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values["traits"].items()}
        backbone = None if values.get("backbone") is None else PretrainedBackbone.from_dict(values["backbone"])
        saved_network = SavedNetwork(backbone, bool(state.group("initial.")))
        learner._build(values["stream"], tuple(values["shape"]), Traits(**traits), values["outputs"], saved_network)
        _restore(learner, state)
    except (AttributeError, LookupError, TypeError, ValueError, RuntimeError, OverflowError, MemoryError) as error:
        raise UserError(
            f"the model folder {source} does not fit this version of itl: {store.error_summary(error)}"
        ) from error
    return learner


def max_tensor_bytes(
    values: Mapping[str, Any], source: str | os.PathLike[str] = "", net: nn.Module | None = None
) -> float:
    """Upper bound of the size of a saved learner's tensors, from its settings. Nothing of this size is allocated.

    Args:
        values: Metadata of the learner's state, unverified.
        source: Where the state comes from, for error messages.
        net: Module with the structure of the network, for a learner that was created with `net`.

    Raises:
        UserError: The metadata do not describe a learner that this version can build.
    """
    try:
        own_net = _adapt_module(source, values["network"], net)
        settings = update_saved_settings(values["settings"])
        if own_net is None:
            _find_backbone(source, settings)
        arguments = (values["method"], values["buffer"], values["seed"], values["classes"])
        try:
            configuration = Learner(*arguments, settings=settings, net=own_net).configuration
        except UserError as error:
            raise ValueError(str(error)) from None
        parts = _networks(values, configuration, width=None)
        weights = sum(tensor.nbytes for part in parts for tensor in part.state_dict().values())
        values_per_image = math.prod(map(int, values["shape"])) + 2 * int(values["outputs"])
        memory = int(values["buffer"]) * (8 * values_per_image + 1024)  # pixels, edits, logits and counters
        options = (v for name, v in settings.items() if name.startswith("specialist.options.") and isinstance(v, int))
        statistics = 16 * max(options, default=0) ** 2  # Gram matrices of random features
    except (AttributeError, LookupError, TypeError, ValueError, RuntimeError, OverflowError, MemoryError) as error:
        raise UserError(
            f"the model folder {source} does not fit this version of itl: {store.error_summary(error)}"
        ) from error
    return float(store.SIZE_TO_CHECK + MAX_COPIES * weights + memory + statistics)


def use_saved_threads(learner: Learner) -> None:
    """Compute with as many CPU threads as when the learner was saved, so that results stay bit-identical."""
    if learner.threads is not None and learner.engine.device.type == "cpu":
        torch.set_num_threads(max(1, min(learner.threads, MAX_THREADS)))


def _adapt_module(source: str | os.PathLike[str], saved: Any, net: nn.Module | None) -> ModuleAdapter | None:
    """Wrap the user's module with the classifier and last layers that were saved."""
    if saved is None and net is None:
        return None
    if saved is None:
        raise UserError(f"the learner in {source} uses a network of itl; load it without net=")
    if net is None:
        raise UserError(f"the learner in {source} uses your own network, a {saved['class']}; load it with net=")
    module = net.module if isinstance(net, ModuleAdapter) else net
    last = [layer if isinstance(layer, str) else tuple(map(str, layer)) for layer in saved["last"]]
    return ModuleAdapter(module, saved["classifier"], last)


def _find_backbone(source: str | os.PathLike[str], settings: Mapping[str, Any]) -> None:
    """Refuse a folder whose backbone is not installed: neither the folder nor this version is to blame."""
    name = str(settings["net.name"])
    try:
        find_backbone(name)
    except UserError as error:
        own = ":" not in name and name not in backbone_names() and error.__cause__ is None
        hint = " If your own code defines it, set the environment variable ITL_BACKBONES=MODULE:NAME." if own else ""
        raise UserError(f"{source} cannot be opened here, and is unchanged: {error}{hint}") from error


def _check_numbers(state: LearnerState) -> None:
    """Reject a normalization or weights that make every prediction undefined."""
    mean, std = (np.asarray(state.metadata["traits"][name], np.float64) for name in ("mean", "std"))
    if not (np.isfinite(mean).all() and np.isfinite(std).all() and (std > 0).all()):
        raise ValueError(f"the normalization is not defined: mean {mean.tolist()}, std {std.tolist()}")
    for name, weights in state.group("net.").items():
        if not bool(torch.isfinite(weights).all()):
            raise ValueError(f"{name} contains numbers that are not finite")


def _check_sizes(state: LearnerState, configuration: Configuration) -> None:
    """Reject saved sizes that differ from the tensors' sizes, before anything of these sizes is allocated."""
    values, tensors = state.metadata, state.tensors
    pixels, outputs = tensors["memory.pixels"], values["outputs"]
    stored, shape = list(pixels.shape[:1]), list(pixels.shape[1:])
    if shape != values["shape"] or len(shape) != 3 or pixels.dtype != torch.uint8:
        raise ValueError(f"memory.pixels is {pixels.dtype} {list(pixels.shape)}, not uint8 of shape {values['shape']}")
    if stored not in ([values["buffer"]], [0]):
        raise ValueError(f"the memory has {stored[0]} images, not {values['buffer']}")
    if type(outputs) is not int or outputs < 1:
        raise ValueError(f"the number of outputs is {outputs!r}, not a positive integer")
    if outputs not in [len(tensor) for tensor in state.group("net.").values() if tensor.ndim]:
        raise ValueError(f"no layer has {outputs} outputs")
    classifier = state.group("net.").get("classifier.weight")
    width = None if classifier is None or classifier.ndim != 2 else classifier.shape[1]
    trunk, net = _networks(values, configuration, width)
    if _shapes(net) != _saved_shapes(state, "net.") or _shapes(trunk) != _saved_shapes(state, "trunk."):
        own_net = configuration.own_net
        name = values["settings"]["net.name"] if own_net is None else own_net.describe()["class"]
        raise ValueError(f"the weights do not fit a {name} with {outputs} outputs")
    if not all(0 <= int(column) < outputs for task in values["tasks"] for column in task):
        raise ValueError(f"a task has classes beyond the {outputs} outputs")


def _networks(
    values: Mapping[str, Any], configuration: Configuration, width: int | None
) -> tuple[nn.Module, nn.Module]:
    """The frozen trunk (empty for none) and the rest of the network, without weights.

    Args:
        values: Metadata of the learner's state.
        configuration: Arguments of the learner.
        width: Number of features of the trunk, if known; it is slow to compute without weights.
    """
    shape, settings = values["shape"], configuration.settings_for(values["stream"]).net
    # Allocates nothing. Other libraries' networks cannot always be built so, and name their own sizes.
    with torch.device("cpu" if ":" in settings.name else "meta"):
        net = configuration.network(settings, shape[0], values["outputs"])
        if settings.trained is None:
            return nn.Sequential(), net
        input_shape = (shape[0], settings.size or shape[1], settings.size or shape[2])
        return split_frozen(net, settings.trained, input_shape, settings.feature_layers, width=width)


def _shapes(module: nn.Module) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in module.state_dict().items()}


def _saved_shapes(state: LearnerState, prefix: str) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in state.group(prefix).items()}


def _restore(learner: Learner, state: LearnerState) -> None:
    """Copy the saved tensors and counters into a newly built learner."""
    values, device = state.metadata, learner.engine.device
    learner.net.load_state_dict(state.group("net."))
    if initial := state.group("initial."):
        learner.net.set_initial_state(initial)
    if learner.extractor is not None:
        learner.extractor.trunk.load_state_dict(state.group("trunk."))
        pixels = state.tensors["memory.pixels"]
        references = learner.extractor.reference(Images(pixels, torch.zeros(len(pixels), dtype=torch.int64)))
        state = LearnerState({**state.tensors, "memory.pixels": references}, state.metadata)
    learner.stage_state = StageState.from_tensors({n: t.to(device) for n, t in state.group("flight.").items()})
    learner.specialist.load_state_dict({n: t.to(device) for n, t in state.group("specialist.").items()}, learner.net)
    restore_memory(learner.memory, state)
    learner.tasks = [tuple(int(column) for column in task) for task in values["tasks"]]
    stage, rounds = values["position"]
    if stage not in STAGES or not 0 <= int(rounds) <= MAX_ROUNDS:
        raise ValueError(f"the position is round {rounds} of the stage '{stage}', which does not exist")
    learner.position = (str(stage), int(rounds))
    learner.threads = int(values["threads"])
    learner.timer.seconds.update({str(part): float(spent) for part, spent in values["seconds"].items()})
    learner.notes = dict(values["notes"])
    names = values.get("class_names")
    learner.class_names = None if names is None else [str(name) for name in names]
    unfinished = (stage == "generalist" and rounds > 0) or (stage, rounds) == ("projection", 0)
    if learner.settings.generalist != "none" and unfinished:
        learner._restore_generalist(learner.traits)
