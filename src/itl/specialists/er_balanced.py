"""Experience replay over one dataset: every class is drawn equally often from the task and the memory together."""

from __future__ import annotations

from dataclasses import replace

from itl.specialists.base import Phase
from itl.specialists.er import ER


class ERBalanced(ER):
    """CE over S(D_t ∪ B), where each class makes up the same share of an epoch.

    With a replay batch of fixed size, a class of the task is seen more often than one that is only in the memory, so
    the network prefers the task's classes: the more images of known classes a task has, the more the others lose.
    Here an epoch has as many samples as task and memory together, and no class is preferred.
    """

    name = "er-balanced"
    data = "both"
    num_replay_batches = 0  # the memory is part of the training data instead
    forward_batches = backward_batches = 1

    def training_phase(self) -> Phase:
        """Class-balanced epochs over the task and the memory."""
        return replace(super().training_phase(), stratified=True)
