"""Memory policies by name. A new one is one file and one line here, or another package's entry point `itl.memory`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points

import numpy as np

from itl.errors import unknown
from itl.memory.slots import Slots
from itl.memory.stratified import stratified

Choice = Callable[[Slots, np.ndarray, np.random.Generator], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Policy:
    """How a memory chooses what it keeps.

    `online`: the reservoir takes samples of every batch, planned with the epoch (`memory.plan`). `at_end` chooses when
    a task is done: from (slots, the task's labels `[n]`, a generator) to (slots to overwrite, rows put there).
    """

    about: str
    online: bool = False
    at_end: Choice | None = None


POLICIES: dict[str, Policy] = {
    "stratified": Policy(
        "stratified random sampling at the task's end; frozen while a task is trained (ITL)", at_end=stratified
    ),
    "reservoir": Policy("reservoir sampling on every batch of every epoch (ER, DER, ITL-L)", online=True),
    "none": Policy("no memory at all (SGD)"),
}


def find(name: str) -> Policy:
    """The policy called `name`."""
    if name not in POLICIES:
        for entry in entry_points(group="itl.memory"):
            if entry.name == name:
                POLICIES[name] = entry.load()
    if name not in POLICIES:
        raise unknown("memory policy", name, POLICIES)
    return POLICIES[name]
