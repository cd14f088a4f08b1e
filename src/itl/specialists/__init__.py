"""Specialists by name. A new one is one file and one line here, or another package's entry point `itl.specialists`."""

from __future__ import annotations

from importlib.metadata import entry_points

from itl.errors import unknown
from itl.memory import get_policy
from itl.settings import OPTIONS, Settings, SpecialistSettings, validate
from itl.specialists.agem import AGEM
from itl.specialists.base import Batch, Options, Phase, Specialist, TaskContext, join
from itl.specialists.cls_er import CLSER
from itl.specialists.co2l import Co2L
from itl.specialists.der import DER
from itl.specialists.derpp import DERpp
from itl.specialists.er import ER
from itl.specialists.er_ace import ERACE
from itl.specialists.er_separate import ERApart
from itl.specialists.er_t import ERT
from itl.specialists.gcr import GCR
from itl.specialists.gdumb import GDumb
from itl.specialists.gmed import GMED
from itl.specialists.gss import GSS
from itl.specialists.icarl import ICaRL
from itl.specialists.joint import Joint
from itl.specialists.lwf import LwF
from itl.specialists.metasp import MetaSP
from itl.specialists.sgd import SGD
from itl.specialists.x_der import XDER

__all__ = [
    "SPECIALISTS",
    "Batch",
    "Options",
    "Phase",
    "Specialist",
    "TaskContext",
    "build",
    "captured",
    "join",
    "resolve",
]

SPECIALISTS: dict[str, type[Specialist]] = {
    kind.name: kind
    for kind in (
        *(SGD, Joint, ER, ERApart, AGEM, DER, DERpp, Co2L, ERACE, XDER, CLSER, GDumb, ICaRL, LwF),
        *(GSS, ERT, GMED, MetaSP, GCR),
    )
}


def build(settings: SpecialistSettings) -> Specialist:
    """The specialist that `settings` name."""
    if settings.name not in SPECIALISTS:
        for entry in entry_points(group="itl.specialists"):
            if entry.name == settings.name:
                SPECIALISTS[entry.name] = entry.load()
    if settings.name not in SPECIALISTS:
        raise unknown("specialist", settings.name, SPECIALISTS)
    return SPECIALISTS[settings.name](settings)


def captured(settings: Settings) -> bool:
    """Whether the specialist's step becomes a CUDA graph where there is a GPU: it can, and so can its memory.

    AutoAugment sorts its draws on the host, so that a memory whose views are made within the step goes without.
    """
    in_step = get_policy(settings.memory.policy).selector_class is not None and settings.augment.memory is not None
    return build(settings.specialist).capturable and not in_step


def resolve(settings: Settings) -> Settings:
    """The same settings with all of the method's own options, checked, whether they were given or not.

    The other design has a specialist of its own, which has none.
    """
    if settings.design == "reverse":
        options = validate(Options, settings.specialist.options, OPTIONS, "design=reverse").model_dump()
    else:
        options = build(settings.specialist).options.model_dump()
    return settings.model_copy(update={"specialist": settings.specialist.model_copy(update={"options": options})})
