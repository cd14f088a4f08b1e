"""Specialists by name: the methods that train on a task with replay, one file each."""

from __future__ import annotations

from itl import method_catalog
from itl.errors import unknown
from itl.memory import get_policy
from itl.method_catalog import register
from itl.settings import OPTIONS, Settings, SpecialistSettings, validate
from itl.specialists.base import Batch, Options, Phase, Specialist, TaskContext, concat

__all__ = [
    "Batch",
    "Options",
    "Phase",
    "Specialist",
    "TaskContext",
    "build",
    "concat",
    "find",
    "is_capturable",
    "names",
    "register",
    "resolve_options",
]


def names() -> list[str]:
    """The values that the setting `specialist.name` can have: this package's specialists, then plug-ins."""
    return method_catalog.names()


def find(name: str) -> type[Specialist]:
    """The class of a specialist.

    Raises:
        UserError: If there is no such specialist, or it is a plug-in that cannot be used.
    """
    if name not in method_catalog.built_in() and name not in names():  # listing plug-ins takes long
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
    in_step = get_policy(settings.memory.policy).selector_class is not None and settings.augment.memory is not None
    return build(settings.specialist).capturable and not in_step


def resolve_options(settings: Settings) -> Settings:
    """`settings` with all options of the specialist filled in and validated.

    With `design=reverse` the specialist is another one, which has no options.
    """
    if settings.design == "reverse":
        options = validate(Options, settings.specialist.options, OPTIONS, "design=reverse").model_dump()
    else:
        options = build(settings.specialist).options.model_dump()
    return settings.model_copy(update={"specialist": settings.specialist.model_copy(update={"options": options})})
