"""Specialists by name. Names, and what `itl methods` shows, are read without importing torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from itl import method_catalog
from itl.errors import unknown
from itl.memory import policy_sets
from itl.settings import OPTIONS, Settings, SpecialistSettings, validate

if TYPE_CHECKING:
    from itl.specialists.base import Specialist


def names() -> list[str]:
    """The values that the setting `specialist.name` can have: this package's specialists, then plug-ins."""
    return method_catalog.names()


def find(name: str) -> type[Specialist]:
    """The class of a specialist.

    Raises:
        UserError: If there is no such specialist, or it is a plug-in that cannot be used.
    """
    known = name in method_catalog.built_in() or name in method_catalog.REGISTERED
    if not known and name not in names():  # listing plug-ins takes long
        raise unknown("specialist", name, names())
    return method_catalog.load(name)


def build(settings: SpecialistSettings) -> Specialist:
    """The specialist that `settings` name.

    Raises:
        UserError: If there is no such specialist, or an option is invalid.
    """
    return find(settings.name)(settings)


def is_capturable(settings: Settings) -> bool:
    """Whether the specialist's step is captured as a CUDA graph on a GPU.

    AutoAugment sorts its operations on the host, so a memory that augments within the step prevents capture.
    """
    in_step = policy_sets(settings.memory.policy, "selector_class") and settings.augment.memory is not None
    return method_catalog.class_attribute(settings.specialist.name, "capturable") and not in_step


def resolve_options(settings: Settings) -> Settings:
    """`settings` with all options of the specialist filled in and validated.

    With `design=reverse` the specialist is another one, which has no options.
    """
    from itl.specialists.base import Options

    if settings.design == "reverse":
        options = validate(Options, settings.specialist.options, OPTIONS, "design=reverse").model_dump()
    else:
        options = build(settings.specialist).options.model_dump()
    return _with_options(settings, options)


def with_option_defaults(settings: Settings) -> Settings:
    """`settings` with all options of the specialist filled in, not validated. Only plug-ins are imported."""
    options = {} if settings.design == "reverse" else method_catalog.option_defaults(settings.specialist.name)
    return _with_options(settings, {**options, **settings.specialist.options})


def _with_options(settings: Settings, options: dict[str, Any]) -> Settings:
    return settings.model_copy(update={"specialist": settings.specialist.model_copy(update={"options": options})})
