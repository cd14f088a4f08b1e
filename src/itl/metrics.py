"""Class-IL and Task-IL accuracy, forgetting and transfer, as the benchmark (mammoth) defines them, in percent.

`signed_forgetting` is not the benchmark's; it is the measure of Chaudhry et al. (2018).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # tables of results need no torch
    from torch import Tensor


@dataclass(frozen=True)
class Score:
    """Accuracy on one task, in percent.

    Attributes:
        class_il: With a choice among all classes, or among the classes seen so far.
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
    """Predictions `[n]`: the best of `classes` by logits `[n, outputs]`; -1 if none of them has an output."""
    import torch

    columns = [c for c in classes if c < logits.shape[1]]
    if not columns:
        return torch.full((len(logits),), -1)
    return torch.tensor(columns)[logits[:, columns].argmax(1)]


def score(logits: Tensor, labels: Tensor, classes: Sequence[int], choices: Sequence[int] | None = None) -> Score:
    """Class-IL and Task-IL accuracy of a task.

    Args:
        logits: Logits `[n, outputs]`, on the CPU.
        labels: Labels `[n]`, on the CPU.
        classes: Classes of the task, among which Task-IL chooses.
        choices: Classes among which Class-IL chooses; None for all outputs.
    """
    chosen = logits.argmax(1) if choices is None else masked_predictions(logits, choices)
    masked = masked_predictions(logits, classes)
    return Score(*(100 * (predicted == labels).double().mean().item() for predicted in (chosen, masked)))


Matrix = Sequence[Sequence[float]]  # row t: accuracies on every task after learning task t


def average(matrix: Matrix, after: int = -1) -> float:
    """Mean accuracy after task `after` over the tasks seen until then (default: the last task)."""
    row = range(len(matrix))[after]
    return sum(matrix[row][: row + 1]) / (row + 1)


def average_incremental(matrix: Matrix) -> float:
    """Average incremental accuracy: mean of `average` after each task."""
    return sum(average(matrix, t) for t in range(len(matrix))) / len(matrix)


def forgetting(matrix: Matrix) -> float | None:
    """Mean over the earlier tasks of (best accuracy, the end included − accuracy at the end); None for one task.

    This is the benchmark's definition. It is never negative: a task that is best at the end counts as 0.
    """
    return _mean_drop(matrix, rows=len(matrix))


def signed_forgetting(matrix: Matrix) -> float | None:
    """Mean over the earlier tasks of (best accuracy before the end − accuracy at the end); None for one task.

    This is the measure of Chaudhry et al. (Riemannian Walk for Incremental Learning, ECCV 2018). It is negative for a
    task that is best at the end.
    """
    return _mean_drop(matrix, rows=len(matrix) - 1)


def _mean_drop(matrix: Matrix, rows: int) -> float | None:
    """Mean over the earlier tasks of (best accuracy in the first `rows` rows − accuracy at the end)."""
    last = len(matrix) - 1
    if last < 1:
        return None
    return sum(max(matrix[t][k] for t in range(k, rows)) - matrix[last][k] for k in range(last)) / last


def forgetting_measures(class_il: Matrix, task_il: Matrix) -> dict[str, float | None]:
    """Both measures of forgetting from both matrices, under their names in result.json."""
    return {
        "forgetting": forgetting(class_il),
        "forgetting_task_il": forgetting(task_il),
        "signed_forgetting": signed_forgetting(class_il),
        "signed_forgetting_task_il": signed_forgetting(task_il),
    }


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
