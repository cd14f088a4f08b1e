"""Builds the components of a learner: settings, network, memory, specialist and engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from itl import generalists, nets, presets, specialists
from itl.augment import Augment
from itl.engine.device import Engine, choose_engine
from itl.engine.keyed_random import torch_generator
from itl.engine.normalize import Normalize
from itl.errors import UserError
from itl.learner import validation
from itl.memory import Memory, PolicyOptions
from itl.settings import AugmentSettings, Network, Settings
from itl.specialists import Specialist
from itl.streams import Traits


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
        self, settings: Network, channels: int, outputs: int, generator: torch.Generator | None = None
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
        )


@dataclass(frozen=True)
class Components:
    """Components of a learner, which depend on the stream of its first task."""

    settings: Settings
    specialist: Specialist
    engine: Engine
    normalize: Normalize
    net: nets.Net
    memory: Memory


def build_components(
    configuration: Configuration, stream: str, shape: tuple[int, int, int], traits: Traits, outputs: int
) -> Components:
    """Build the components of a learner for images of `shape` `[c, h, w]` and a classifier with `outputs` outputs.

    Raises:
        UserError: The settings, the specialist and the memory do not fit together.
    """
    settings = configuration.settings_for(stream)
    reverse = settings.design == "reverse"
    specialist = generalists.TangentSpecialist(settings) if reverse else specialists.build(settings.specialist)
    engine = choose_engine(configuration.device, settings.precision, exact=settings.exact, capture=settings.capture)
    normalize = Normalize(traits.mean, traits.std, engine)
    rng = torch_generator(configuration.seed, "network")
    net = engine.to_device(configuration.network(settings.net, shape[0], outputs, rng))
    net.validate_input(shape)
    memory = _build_memory(settings, configuration.buffer, shape, outputs, specialist, engine)
    validation.check_settings(configuration.method, configuration.classes, settings, specialist, memory)
    net.split(settings.tangent.layers)  # raises if the network has fewer layers
    for policy in (settings.augment.task, settings.augment.memory):
        build_augment(settings.augment, traits, policy)  # raises if the policy is unknown
    return Components(settings, specialist, engine, normalize, net, memory)


def build_augment(settings: AugmentSettings, traits: Traits, policy: str | None) -> Augment:
    """Augmentation with an AutoAugment policy; settings that are None take the stream's value."""
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
