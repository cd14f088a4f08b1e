"""Builds the components of a learner: settings, network, memory, specialist and engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from itl import generalists, nets, presets, specialists
from itl.augment import Augment
from itl.engine.device import Engine, choose_engine
from itl.engine.keyed_random import torch_generator
from itl.engine.normalize import Normalize
from itl.errors import UserError
from itl.features import REFERENCE_SHAPE, FeatureExtractor, MirrorAugment
from itl.learner import validation
from itl.memory import Memory, PolicyOptions
from itl.nets.weights import file_sha256, tensors_sha256
from itl.settings import AugmentSettings, Network, Settings
from itl.specialists import Specialist
from itl.streams import Traits


def backbone_overrides(
    backbone: str | None, net: nets.ModuleAdapter | None, settings: Mapping[str, Any]
) -> Mapping[str, Any]:
    """`settings` with those that suit a backbone, if it is given."""
    if net is not None and backbone is not None:
        raise UserError("give either net or backbone, not both")
    if backbone is None:
        return settings
    return {**nets.backbone_settings(backbone, settings.get("net.weights")), **settings}


@dataclass(frozen=True)
class Configuration:
    """Arguments of a learner that determine its components."""

    method: str
    buffer: int
    seed: int
    classes: int | None
    overrides: Mapping[str, Any]
    device: str
    own_net: nets.ModuleAdapter | None

    def settings_for(self, stream: str) -> Settings:
        """Settings on a stream ("" for none): the method's defaults with the overrides applied."""
        return specialists.resolve_options(
            presets.settings_for(self.method, stream or None, self.buffer, self.overrides)
        )

    def default_settings(self) -> Settings:
        """Settings before a stream is known.

        An option may belong to a specialist that the method uses on some streams only, so the overrides are accepted
        if they are valid without a stream or on any stream for which the method has a preset.
        """
        last_error = None
        for stream in ("", *dict.fromkeys(name for name, _ in presets.get(self.method).stream_defaults)):
            try:
                settings = self.settings_for(stream)
            except UserError as error:
                last_error = error
            else:
                return presets.settings_for(self.method, None, self.buffer, self.overrides) if stream else settings
        assert last_error is not None
        raise last_error

    def network(
        self,
        settings: Network,
        channels: int,
        outputs: int,
        generator: torch.Generator | None = None,
        loads_weights: bool = False,
    ) -> nets.Net:
        """The network that the settings name, or the user's module with a new classifier, drawn from `generator`."""
        if self.own_net is not None:
            return nets.with_new_classifier(self.own_net, outputs, generator)
        return nets.build(
            settings.name,
            outputs,
            channels=channels,
            width=settings.width,
            strided=settings.strided,
            generator=generator,
            pretrained=loads_weights and settings.pretrained,
            weights=settings.weights if loads_weights else None,
        )


@dataclass(frozen=True)
class PretrainedBackbone:
    """What is recorded of a pre-trained backbone: its name, the hash of its weights, and its preprocessing."""

    name: str
    weights_sha256: str
    preprocessing: nets.Preprocessing

    @classmethod
    def describe(
        cls, settings: Network, net: nets.Net, traits: Traits, shape: tuple[int, int, int]
    ) -> PretrainedBackbone:
        """The backbone that the settings name, whose weights `net` has.

        A backbone without preprocessing gets the stream's.
        """
        backbone, file = nets.find(settings.name), settings.weights
        if file is not None:
            sha256 = file_sha256(file)
        else:
            sha256 = backbone.weights_sha256 or tensors_sha256(net)
        own = nets.Preprocessing(traits.mean, traits.std, settings.size or shape[-1])
        preprocessing = (backbone.preprocessing if settings.pretrained else None) or own
        return cls(settings.name, sha256, preprocessing)

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> PretrainedBackbone:
        """The inverse of `to_dict`."""
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in saved["preprocessing"].items()}
        return cls(str(saved["name"]), str(saved["weights_sha256"]), nets.Preprocessing(**values))

    def to_dict(self) -> dict[str, Any]:
        """JSON data for saved learners."""
        return asdict(self)


@dataclass(frozen=True)
class SavedNetwork:
    """What a saved learner says about its network, whose weights the caller will load.

    Attributes:
        backbone: The record of its pre-trained backbone, if it has one.
        has_initial_weights: Whether the initial weights are saved too.
    """

    backbone: PretrainedBackbone | None = None
    has_initial_weights: bool = False


@dataclass(frozen=True)
class Components:
    """Components of a learner, which depend on the stream of its first task.

    With a frozen trunk, `normalize` computes features, and `net` is the head that is trained on them.
    """

    settings: Settings
    specialist: Specialist
    engine: Engine
    normalize: Normalize | FeatureExtractor
    net: nets.Net
    memory: Memory
    backbone: PretrainedBackbone | None


def build_components(
    configuration: Configuration,
    stream: str,
    shape: tuple[int, int, int],
    traits: Traits,
    outputs: int,
    saved: SavedNetwork | None = None,
) -> Components:
    """Build the components of a learner for images of `shape` `[c, h, w]` and a classifier with `outputs` outputs.

    Args:
        configuration: The learner's arguments.
        stream: Name of the stream, "" for none.
        shape: Shape of the images.
        traits: Properties of the stream.
        outputs: Outputs of the classifier.
        saved: The network of a saved learner; None for a new one.

    Raises:
        UserError: The settings, the specialist and the memory do not fit together.
    """
    settings = configuration.settings_for(stream)
    reverse = settings.design == "reverse"
    specialist = generalists.TangentSpecialist(settings) if reverse else specialists.build(settings.specialist)
    engine = choose_engine(configuration.device, settings.precision, exact=settings.exact, capture=settings.capture)
    # A method that starts every task from the initial weights needs them even if the trained weights are loaded.
    resets = specialist.resets_network and settings.net.trained != 1
    loads_weights = saved is None or (resets and not saved.has_initial_weights)
    rng = torch_generator(configuration.seed, "network")
    net = configuration.network(settings.net, shape[0], outputs, rng, loads_weights)
    backbone = None if saved is None else saved.backbone
    if backbone is None and saved is None and (settings.net.pretrained or settings.net.weights is not None):
        backbone = PretrainedBackbone.describe(settings.net, net, traits, shape)
    normalize, net = _build_input(settings, net, engine, shape, traits, backbone, specialist, configuration.seed)
    references = isinstance(normalize, FeatureExtractor)
    memory_shape = REFERENCE_SHAPE if references else shape
    memory = _build_memory(settings, configuration.buffer, memory_shape, outputs, specialist, engine)
    validation.check_settings(configuration.method, configuration.classes, settings, specialist, memory)
    net.split(settings.tangent.layers)  # raises if the network has fewer layers
    for policy in (settings.augment.task, settings.augment.memory, settings.augment.generalist_policy):
        build_augment(settings.augment, traits, policy)  # raises if the policy is unknown
    return Components(settings, specialist, engine, normalize, net, memory, backbone)


def _build_input(
    settings: Settings,
    net: nets.Net,
    engine: Engine,
    shape: tuple[int, int, int],
    traits: Traits,
    backbone: PretrainedBackbone | None,
    specialist: Specialist,
    seed: int,
) -> tuple[Normalize | FeatureExtractor, nets.Net]:
    """The conversion of images to the inputs of the trained network, and that network, both on the device."""
    size, channels = settings.net.size, shape[0]
    if backbone is None:
        normalize = Normalize(traits.mean, traits.std, engine, size)
    else:
        p = backbone.preprocessing
        if len(p.mean) != channels:
            raise UserError(f"{backbone.name} needs images with {len(p.mean)} channels, not {channels}")
        normalize = Normalize(p.mean, p.std, engine, size, p.interpolation)
    input_shape = shape if size is None else (channels, size, size)
    engine.to_device(net).validate_input(input_shape)
    if settings.net.trained is None:
        return normalize, net
    rng = torch_generator(seed, "classifier of features")
    trunk, head = nets.split_frozen(net, settings.net.trained, input_shape, settings.net.feature_layers, rng)
    flips = traits.flip if settings.augment.flip is None else settings.augment.flip
    return FeatureExtractor(normalize, trunk, engine, shape, flips and specialist.optimizes), head


def build_augment(settings: AugmentSettings, traits: Traits, policy: str | None, references: bool = False) -> Augment:
    """Augmentation with an AutoAugment policy; settings that are None take the stream's value.

    References to cached features (`references`) are augmented by mirroring alone.
    """
    if references:
        return MirrorAugment(flip=traits.flip if settings.flip is None else settings.flip)
    return Augment(
        padding=traits.padding if settings.padding is None else settings.padding,
        flip=traits.flip if settings.flip is None else settings.flip,
        policy=traits.policy if policy == "stream" else policy,
        fill=settings.fill,
    )


def _build_memory(
    settings: Settings,
    buffer: int,
    shape: tuple[int, int, int],
    outputs: int,
    specialist: Specialist,
    engine: Engine,
) -> Memory:
    m, s = settings.memory, settings.specialist
    stored_logits = outputs if m.logits or specialist.stores_logits else None
    size = 0 if m.policy == "none" else buffer
    options = PolicyOptions(m.temperature, m.fraction, m.every, s.alpha, s.beta or 1.0)
    return Memory(size, m.policy, shape, stored_logits, engine, weighted=m.weights, options=options)
