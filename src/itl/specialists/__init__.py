"""Specialists by name. A new one is one file and one line here, or another package's entry point `itl.specialists`."""

from __future__ import annotations

from importlib.metadata import entry_points

from itl.errors import unknown
from itl.settings import SpecialistSettings
from itl.specialists.base import Specialist, View, join
from itl.specialists.derpp import DERpp
from itl.specialists.er import ER
from itl.specialists.sgd import SGD

__all__ = ["SPECIALISTS", "Specialist", "View", "build", "join"]

SPECIALISTS: dict[str, type[Specialist]] = {kind.name: kind for kind in (SGD, ER, DERpp)}


def build(settings: SpecialistSettings) -> Specialist:
    """The specialist that `settings` name."""
    if settings.name not in SPECIALISTS:
        for entry in entry_points(group="itl.specialists"):
            if entry.name == settings.name:
                SPECIALISTS[entry.name] = entry.load()
    if settings.name not in SPECIALISTS:
        raise unknown("specialist", settings.name, SPECIALISTS)
    return SPECIALISTS[settings.name](settings)
