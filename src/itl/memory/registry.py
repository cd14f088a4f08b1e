"""Memory policies by name: those of this package, and those of other packages by the entry point `itl.memory`.

A new policy of this package is one module under `itl.memory.policies` and one line here. The names and summaries can be
read without importing torch.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

from itl.errors import UserError, unknown

if TYPE_CHECKING:
    from itl.memory.policies.base import MemoryPolicy

ENTRY_POINT_GROUP = "itl.memory"

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
    return list(dict.fromkeys([*BUILT_IN, *_entry_points()]))


def policy_summaries() -> dict[str, str]:
    """A one-line summary of each policy, by name; for another package's policy, where it is defined."""
    added = {name: entry.value for name, entry in _entry_points().items()}
    return {**added, **{name: summary for name, (_, summary) in BUILT_IN.items()}}


def get_policy(name: str) -> MemoryPolicy:
    """The policy called `name`.

    Args:
        name: Name of a policy of this package or of an entry point in the group `itl.memory`.

    Raises:
        UserError: There is no such policy, or the other package's entry point is not a `MemoryPolicy`.
    """
    if name in BUILT_IN:
        return _built_in(name)
    added = _entry_points()
    if name not in added:
        raise unknown("memory policy", name, policy_names())
    return _as_policy(added[name].load(), f"memory policy {name} ({added[name].value})")


@cache
def _built_in(name: str) -> MemoryPolicy:
    module, _, class_name = BUILT_IN[name][0].partition(":")
    policy: MemoryPolicy = getattr(import_module(f"itl.memory.policies.{module}"), class_name)()
    return policy


def _as_policy(found: Any, description: str) -> MemoryPolicy:
    """An entry point may be a policy class or a policy."""
    from itl.memory.policies.base import MemoryPolicy

    policy = found() if isinstance(found, type) and issubclass(found, MemoryPolicy) else found
    if not isinstance(policy, MemoryPolicy):
        raise UserError(f"{description} is not an itl.memory.MemoryPolicy; fix or remove its package")
    return policy


def _entry_points() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}
