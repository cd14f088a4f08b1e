"""Stages of a task, and the tensors that an unfinished stage needs to be resumed."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

# Stages of a task, in order. A learner's position is one of them and the number of its completed rounds.
STAGES = ("specialist", "closing", "memory", "generalist", "projection", "done")

_PREFIXES = {  # names on disk
    "before_half_pipe": "before.",
    "momentum": "momentum.",
    "candidates": "candidates.",
    "monitor": "monitor.",
}


@dataclass
class StageState:
    """Tensors that an unfinished stage needs in addition to the network and the memory.

    Attributes:
        before_half_pipe: Weights that the half-pipe replaced, by parameter name.
        generalist: Tensors of the generalist, by the names in `Generalist.tensors`.
        momentum: Momentum of the optimizer, by parameter name.
        candidates: Samples that the memory's policy collects during a task.
        monitor: Tensors of the stage's monitor.
    """

    before_half_pipe: dict[str, Tensor] = field(default_factory=dict)
    generalist: dict[str, Tensor] = field(default_factory=dict)
    momentum: dict[str, Tensor] = field(default_factory=dict)
    candidates: dict[str, Tensor] = field(default_factory=dict)
    monitor: dict[str, Tensor] = field(default_factory=dict)

    def tensors(self) -> dict[str, Tensor]:
        """Tensors to checkpoint, in one dictionary."""
        tensors = dict(self.generalist)
        for group, prefix in _PREFIXES.items():
            tensors |= {prefix + name: tensor for name, tensor in getattr(self, group).items()}
        return tensors

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> StageState:
        """Restore the state from the dictionary that `tensors` returned."""
        state = cls()
        for name, tensor in tensors.items():
            group = next((group for group, prefix in _PREFIXES.items() if name.startswith(prefix)), "generalist")
            getattr(state, group)[name.removeprefix(_PREFIXES.get(group, ""))] = tensor
        return state
