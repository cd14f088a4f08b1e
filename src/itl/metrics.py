"""Class-IL, Task-IL, forgetting and transfer, as the benchmark defines them. Percent everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Score:
    """One task's accuracy, with the choice among all classes, and with the other tasks' classes masked."""

    class_il: float
    task_il: float


@dataclass(frozen=True)
class Scores:
    """All tasks' accuracies, and their means over the tasks seen so far."""

    per_task: list[Score]
    class_il: float
    task_il: float

    @classmethod
    def of(cls, scores: Sequence[Score], seen: int) -> Scores:
        """The scores of all tasks, averaged over the first `seen`."""
        part = list(scores)[:seen]
        if not part:
            return cls(list(scores), 0.0, 0.0)
        return cls(list(scores), sum(s.class_il for s in part) / len(part), sum(s.task_il for s in part) / len(part))


def within(logits: Tensor, classes: Sequence[int]) -> Tensor:
    """Predictions `[n]` when every class outside `classes` is masked: Task-IL's. `logits` is `[n, outputs]`."""
    columns = [c for c in classes if c < logits.shape[1]]
    if not columns:
        return torch.full((len(logits),), -1)
    return torch.tensor(columns)[logits[:, columns].argmax(1)]


def score(logits: Tensor, labels: Tensor, classes: Sequence[int]) -> Score:
    """A task's two accuracies from logits `[n, outputs]` and labels `[n]` (CPU)."""
    whole = (logits.argmax(1) == labels).double().mean().item()
    masked = (within(logits, classes) == labels).double().mean().item()
    return Score(100 * whole, 100 * masked)


Matrix = Sequence[Sequence[float]]  # row t: accuracies on every task after learning task t


def average(matrix: Matrix, after: int = -1) -> float:
    """Mean accuracy over the tasks seen after task `after` (default: the last)."""
    row = range(len(matrix))[after]
    return sum(matrix[row][: row + 1]) / (row + 1)


def average_incremental(matrix: Matrix) -> float:
    """The mean of the averages after each task."""
    return sum(average(matrix, t) for t in range(len(matrix))) / len(matrix)


def forgetting(matrix: Matrix) -> float | None:
    """Mean over the earlier tasks of (best accuracy before the end − accuracy at the end); None for one task."""
    last = len(matrix) - 1
    if last < 1:
        return None
    return sum(max(matrix[t][k] for t in range(k, last)) - matrix[last][k] for k in range(last)) / last


def backward_transfer(matrix: Matrix) -> float | None:
    """Mean over the earlier tasks of (accuracy at the end − accuracy when just learned); None for one task."""
    last = len(matrix) - 1
    if last < 1:
        return None
    return sum(matrix[last][k] - matrix[k][k] for k in range(last)) / last


def forward_transfer(matrix: Matrix, untrained: Sequence[float]) -> float | None:
    """Mean over the later tasks of (accuracy just before learning it − that of the untrained network)."""
    last = len(matrix) - 1
    if last < 1:
        return None
    return sum(matrix[k - 1][k] - untrained[k] for k in range(1, last + 1)) / last
