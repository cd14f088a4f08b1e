"""Accuracy, forgetting and transfer, compared with manually computed values."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from itl import metrics

# Row: after task 1, 2, 3. Column: accuracy on task 1, 2, 3 (the upper triangle: tasks not yet learned).
MATRIX = [
    [90.0, 10.0, 20.0],
    [60.0, 80.0, 5.0],
    [70.0, 50.0, 95.0],
]


def test_average_covers_the_tasks_seen() -> None:
    assert metrics.average(MATRIX) == pytest.approx((70 + 50 + 95) / 3)
    assert metrics.average(MATRIX, 0) == 90
    assert metrics.average(MATRIX, 1) == 70


def test_average_incremental_is_the_mean_of_the_averages() -> None:
    assert metrics.average_incremental(MATRIX) == pytest.approx((90 + 70 + 215 / 3) / 3)


# Task 1 is best in row 2; task 2 is best at the end.
RELEARNED = [
    [50.0, 0.0, 0.0],
    [90.0, 70.0, 0.0],
    [60.0, 80.0, 90.0],
]


def test_forgetting_is_measured_from_the_best_accuracy_including_the_end() -> None:
    assert metrics.forgetting(MATRIX) == pytest.approx(((90 - 70) + (80 - 50)) / 2)
    assert metrics.forgetting(RELEARNED) == pytest.approx(((90 - 60) + (80 - 80)) / 2)


def test_signed_forgetting_is_measured_from_the_best_earlier_accuracy() -> None:
    assert metrics.signed_forgetting(MATRIX) == metrics.forgetting(MATRIX)
    assert metrics.signed_forgetting(RELEARNED) == pytest.approx(((90 - 60) + (70 - 80)) / 2)


@pytest.mark.parametrize("matrix", [MATRIX, RELEARNED, [[50.0], [60.0, 80.0], [70.0, 60.0, 70.0]]])
def test_forgetting_equals_the_benchmarks_column_maxima(matrix: list[list[float]]) -> None:
    """The benchmark fills the accuracies of tasks that are not learned yet with zeros and takes column maxima."""
    size = len(matrix)
    lower = np.array([[row[k] if k <= t else 0.0 for k in range(size)] for t, row in enumerate(matrix)])
    expected = (lower.max(0) - lower[-1])[:-1].mean()
    assert metrics.forgetting(matrix) == pytest.approx(expected)


def test_both_measures_of_forgetting_of_a_task_that_keeps_improving() -> None:
    matrix = [[50.0], [60.0, 80.0], [70.0, 60.0, 70.0]]
    assert (metrics.forgetting(matrix), metrics.signed_forgetting(matrix)) == (10, 5)


def test_backward_transfer_is_measured_from_the_end_of_each_task() -> None:
    assert metrics.backward_transfer(MATRIX) == pytest.approx(((70 - 90) + (50 - 80)) / 2)


def test_forward_transfer_is_measured_from_the_untrained_network() -> None:
    assert metrics.forward_transfer(MATRIX, [1.0, 2.0, 3.0]) == pytest.approx(((10 - 2) + (5 - 3)) / 2)


def test_single_task_has_no_forgetting_and_transfer() -> None:
    matrix = [[88.0]]
    assert metrics.average(matrix) == metrics.average_incremental(matrix) == 88
    assert metrics.forgetting(matrix) is None
    assert metrics.signed_forgetting(matrix) is None
    assert metrics.backward_transfer(matrix) is None
    assert metrics.forward_transfer(matrix, [50.0]) is None


LOGITS = torch.tensor(
    [
        [0.1, 0.2, 0.9, 0.0],  # predicts 2; within task (0, 1): 1
        [0.8, 0.1, 0.0, 0.0],  # predicts 0; 0
        [0.0, 0.3, 0.0, 0.5],  # predicts 3; 1
        [-5.0, -6.0, -1.0, -2.0],  # predicts 2; 0, although both are below all others
    ]
)
LABELS = torch.tensor([1, 0, 0, 0])


def test_task_il_masks_the_classes_of_other_tasks() -> None:
    assert metrics.masked_predictions(LOGITS, (0, 1)).tolist() == [1, 0, 1, 0]
    assert metrics.masked_predictions(LOGITS, (2, 3)).tolist() == [2, 2, 3, 2]
    assert metrics.score(LOGITS, LABELS, (0, 1)) == metrics.Score(class_il=25.0, task_il=75.0)


def test_classes_without_output_are_never_predicted() -> None:
    assert metrics.masked_predictions(LOGITS, (3, 4, 5)).tolist() == [3, 3, 3, 3]
    assert metrics.masked_predictions(LOGITS, (4, 5)).tolist() == [-1] * 4
    assert metrics.score(LOGITS, torch.full((4,), 4), (4, 5)) == metrics.Score(0.0, 0.0)


def test_class_il_can_choose_among_the_classes_seen_so_far() -> None:
    assert metrics.score(LOGITS, LABELS, (0, 1), (0, 1)) == metrics.Score(class_il=75.0, task_il=75.0)
    assert metrics.score(LOGITS, LABELS, (0, 1), (0, 1, 2)) == metrics.Score(class_il=25.0, task_il=75.0)
    assert metrics.score(LOGITS, LABELS, (0, 1), range(4)) == metrics.score(LOGITS, LABELS, (0, 1))
    assert metrics.score(LOGITS, LABELS, (0, 1), ()) == metrics.Score(class_il=0.0, task_il=75.0)


def test_scores_average_the_tasks_seen_with_equal_weight() -> None:
    tasks = [metrics.Score(90, 95), metrics.Score(30, 65), metrics.Score(0, 50)]
    assert metrics.Scores.of(tasks, seen=2).class_il == 60
    assert metrics.Scores.of(tasks, seen=2).task_il == 80
    assert metrics.Scores.of(tasks, seen=2).per_task == tasks
    assert metrics.Scores.of(tasks, seen=0).class_il == 0
