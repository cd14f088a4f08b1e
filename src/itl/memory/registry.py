"""Memory policies by name. A new one is one file and one line here, or another package's entry point `itl.memory`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points

import numpy as np

from itl.errors import unknown
from itl.memory.candidates import Candidates
from itl.memory.model_outputs import ModelOutputs
from itl.memory.online_selection import GreedyCosine, LossAware, OnlineSelector, filling
from itl.memory.policies.coreset import Coreset
from itl.memory.policies.entropy import Entropy
from itl.memory.policies.gcr import GradientCoreset
from itl.memory.policies.herding import herded
from itl.memory.policies.reservoir import offered
from itl.memory.policies.ring import ring
from itl.memory.policies.stratified import stratified
from itl.memory.slots import Slots

Choice = Callable[[Slots, np.ndarray, np.random.Generator], tuple[np.ndarray, np.ndarray]]
Offer = Callable[[Slots, np.ndarray, np.random.Generator], np.ndarray]
Ranking = Callable[[np.ndarray, int, ModelOutputs], np.ndarray]


@dataclass(frozen=True)
class Policy:
    """How a memory chooses what it keeps. One of these says when, and by what:

    `online`: samples of every batch are taken, planned with the epoch (`memory.plan`): from (slots, the classes of the
    samples offered one after another `[n]`, a generator) to the slot each is written to `[n]`, the memory's size for
    nowhere. `at_end` chooses when a task is done: from (slots, the task's labels `[n]`, a generator) to (slots to
    overwrite, rows put there). `ranks` does so by what the network says: from (the task's labels, the memory's size,
    its sight) to rows of the task, each class's best first; classes share the memory equally. `gathers` makes the
    candidates that are gathered while the task is trained. `live` chooses slots within the step, beyond what `online`
    has planned. `weighs`: it gives every sample a weight for the loss.
    """

    about: str
    online: Offer | None = None
    at_end: Choice | None = None
    ranks: Ranking | None = None
    gathers: type[Candidates] | None = None
    live: type[OnlineSelector] | None = None
    weighs: bool = False


POLICIES: dict[str, Policy] = {
    "stratified": Policy(
        "stratified random sampling at the task's end; frozen while a task is trained (ITL)", at_end=stratified
    ),
    "reservoir": Policy("reservoir sampling on every batch of every epoch (ER, DER, ITL-L)", online=offered),
    "ring": Policy("the last samples of every class, on every batch", online=ring),
    "loss-aware": Policy(
        "a reservoir that gives up images of low loss and common class, on every batch (ER-T)",
        online=filling,
        live=LossAware,
    ),
    "gss": Policy(
        "images whose gradients differ, on every batch; the specialist gss compares them",
        online=filling,
        live=GreedyCosine,
    ),
    "herding": Policy("samples whose mean feature is their class's, at the task's end (iCaRL)", ranks=herded),
    "entropy": Policy("the likelier the less certain the specialist; merged at the task's end", gathers=Entropy),
    "coreset": Policy("from weighted coresets of the task; merged at its end", gathers=Coreset, weighs=True),
    "gcr": Policy(
        "a weighted coreset of the last layer's gradients; at the task's end", gathers=GradientCoreset, weighs=True
    ),
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
