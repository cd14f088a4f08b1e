"""Class-IL and Task-IL accuracy, forgetting and transfer, as defined by the benchmark, in percent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Score:
    """Accuracy on one task, in percent.

    Attributes:
        class_il: With a choice among all classes.
        task_il: With the classes of other tasks masked.
    """

    class_il: float
    task_il: float


@dataclass(frozen=True)
class Scores:
    """Accuracy on all tasks, in percent.

    Attributes:
        per_task: Scores of all tasks, including unseen ones.
        class_il: Mean Class-IL accuracy over the tasks seen.
        task_il: Mean Task-IL accuracy over the tasks seen.
    """

    per_task: list[Score]
    class_il: float
    task_il: float

    @classmethod
    def of(cls, scores: Sequence[Score], seen: int) -> Scores:
        """Scores of all tasks with means over the first `seen`."""
        part = list(scores)[:seen]
        if not part:
            return cls(list(scores), 0.0, 0.0)
        return cls(list(scores), sum(s.class_il for s in part) / len(part), sum(s.task_il for s in part) / len(part))


def masked_predictions(logits: Tensor, classes: Sequence[int]) -> Tensor:
    """Task-IL predictions `[n]`: the best of `classes` by logits `[n, outputs]`; -1 if none has an output."""
    columns = [c for c in classes if c < logits.shape[1]]
    if not columns:
        return torch.full((len(logits),), -1)
    return torch.tensor(columns)[logits[:, columns].argmax(1)]


def score(logits: Tensor, labels: Tensor, classes: Sequence[int]) -> Score:
    """Class-IL and Task-IL accuracy of a task from logits `[n, outputs]` and labels `[n]` on the CPU."""
    unmasked = (logits.argmax(1) == labels).double().mean().item()
    masked = (masked_predictions(logits, classes) == labels).double().mean().item()
    return Score(100 * unmasked, 100 * masked)


Matrix = Sequence[Sequence[float]]  # row t: accuracies on every task after learning task t


def average(matrix: Matrix, after: int = -1) -> float:
    """Mean accuracy after task `after` over the tasks seen until then (default: the last task)."""
    row = range(len(matrix))[after]
    return sum(matrix[row][: row + 1]) / (row + 1)


def average_incremental(matrix: Matrix) -> float:
    """Average incremental accuracy: mean of `average` after each task."""
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
    """Mean over the later tasks of (accuracy just before learning it − accuracy of the untrained network)."""
    last = len(matrix) - 1
    if last < 1:
        return None
    return sum(matrix[k - 1][k] - untrained[k] for k in range(1, last + 1)) / last
