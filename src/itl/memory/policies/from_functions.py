"""A memory policy from plain functions, the interface before policies were classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from itl.memory.candidates import Candidates
from itl.memory.class_balance import merge_by_class
from itl.memory.model_outputs import ModelOutputs
from itl.memory.online_selection import OnlineSelector
from itl.memory.policies.base import MemoryPolicy, WritePlanner
from itl.memory.slots import Slots

Selection = tuple[np.ndarray, np.ndarray]


def policy_from_functions(
    summary: str = "",
    plan_writes: WritePlanner | None = None,
    select_at_task_end: Callable[[Slots, np.ndarray, np.random.Generator], Selection] | None = None,
    rank: Callable[[np.ndarray, int, ModelOutputs], np.ndarray] | None = None,
    candidates_class: type[Candidates] | None = None,
    selector_class: type[OnlineSelector] | None = None,
    assigns_weights: bool = False,
) -> MemoryPolicy:
    """Make a policy from functions. New policies should be subclasses of `MemoryPolicy`.

    Args:
        summary: A one-line description.
        plan_writes: As `MemoryPolicy.plan_writes`.
        select_at_task_end: As `MemoryPolicy.select_at_task_end`, without the network's outputs.
        rank: Ranks the task's rows, the best of each class first, from (labels, size of the memory, outputs). All
            classes share the memory equally.
        candidates_class: As `MemoryPolicy.candidates_class`.
        selector_class: As `MemoryPolicy.selector_class`.
        assigns_weights: As `MemoryPolicy.assigns_weights`.
    """

    def select(
        self: MemoryPolicy, slots: Slots, labels: np.ndarray, rng: np.random.Generator, outputs: ModelOutputs
    ) -> Selection | None:
        if select_at_task_end is not None:
            return select_at_task_end(slots, labels, rng)
        if rank is not None:
            return merge_by_class(slots, labels, rng, rank(labels, slots.size, outputs), evict_last=True)
        return None

    attributes: dict[str, Any] = {
        "__doc__": summary,
        "select_at_task_end": select,
        "candidates_class": candidates_class,
        "selector_class": selector_class,
        "assigns_weights": assigns_weights,
    }
    if plan_writes is not None:
        attributes["plan_writes"] = staticmethod(plan_writes)
    policy: MemoryPolicy = type("FunctionPolicy", (MemoryPolicy,), attributes)()
    return policy
