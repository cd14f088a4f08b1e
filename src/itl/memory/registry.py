"""Memory policies by name: those of this package, and those of other packages by the entry point `itl.memory`.

A new policy of this package is one module under `itl.memory.policies` and one line here. The names and summaries can be
read without importing torch.
"""

from __future__ import annotations

import ast
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from itl import plugins
from itl.errors import unknown
from itl.static_attributes import inherited

if TYPE_CHECKING:
    from itl.memory.policies.base import MemoryPolicy

ENTRY_POINT_GROUP = "itl.memory"

POLICIES_FOLDER = Path(__file__).parent / "policies"

# name: (module and class under itl.memory.policies, summary)
BUILT_IN = {
    "stratified": ("stratified:Stratified", "class-balanced random sampling at the task's end (ITL)"),
    "reservoir": ("reservoir:Reservoir", "reservoir sampling on every batch of every epoch (ER, DER, ITL-L)"),
    "ring": ("ring:Ring", "the last samples of every class, on every batch"),
    "loss-aware": (
        "loss_aware:LossAware",
        "a reservoir that evicts images of low loss and common class, on every batch (ER-T)",
    ),
    "gss": ("gss:GSSGreedy", "images with dissimilar gradients, on every batch (only with the specialist gss)"),
    "herding": ("herding:Herding", "samples whose mean feature is near their class's, at the task's end (iCaRL)"),
    "entropy": ("entropy:Entropy", "samples about which the specialist is uncertain, at the task's end"),
    "coreset": ("coreset:Coreset", "samples of weighted coresets of the task, at the task's end"),
    "gcr": ("gcr:GradientCoreset", "a weighted coreset of the last layer's gradients, at the task's end (GCR)"),
    "none": ("none:NoMemory", "no memory (SGD)"),
}


def policy_names() -> list[str]:
    """The names of all policies, those of other packages last."""
    return list(dict.fromkeys([*BUILT_IN, *plugins.find_all(ENTRY_POINT_GROUP)]))


def policy_summaries() -> dict[str, str]:
    """A one-line summary of each policy, by name; for another package's policy, where it is defined."""
    added = {name: entry.value for name, entry in plugins.find_all(ENTRY_POINT_GROUP).items()}
    return {**added, **{name: summary for name, (_, summary) in BUILT_IN.items()}}


def get_policy(name: str) -> MemoryPolicy:
    """The policy called `name`.

    Args:
        name: Name of a policy of this package or of an entry point in the group `itl.memory`.

    Raises:
        UserError: There is no such policy, or the other package's entry point cannot be used.
    """
    from itl.memory.policies.base import MemoryPolicy  # imports torch

    if name in BUILT_IN:
        return _built_in(name)
    added = plugins.find_all(ENTRY_POINT_GROUP)
    if name not in added:
        raise unknown("memory policy", name, policy_names())
    policy: MemoryPolicy | type[MemoryPolicy] = plugins.load("memory policy", added[name], MemoryPolicy)
    return policy() if isinstance(policy, type) else policy


def policy_sets(name: str, attribute: str) -> bool:
    """Whether a class attribute of a policy is neither None nor False. This package's policies are not imported."""
    if name not in BUILT_IN:
        return bool(getattr(get_policy(name), attribute))
    value = inherited(POLICIES_FOLDER, BUILT_IN[name][0].partition(":")[2], attribute)
    return value is not None and not (isinstance(value, ast.Constant) and not value.value)


@cache
def _built_in(name: str) -> MemoryPolicy:
    module, _, class_name = BUILT_IN[name][0].partition(":")
    policy: MemoryPolicy = getattr(import_module(f"itl.memory.policies.{module}"), class_name)()
    return policy
