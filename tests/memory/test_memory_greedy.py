"""Tests of greedy selection against exhaustive search and plain reference implementations."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
import torch
from torch import Tensor

from itl.memory import greedy_selection
from itl.memory.greedy_selection import facility_location, herding, matching_pursuit
from itl.memory.policies.coreset import coreset_weights
from support.matching_pursuit import reference_pursuit


def cloud(n: int, d: int, seed: int) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def objective(points: np.ndarray, chosen: tuple[int, ...]) -> float:
    """F(S) = Σ_i (c - distance of x_i to the nearest point in S); c is twice the largest distance from the mean."""
    c = 2 * max(math.dist(x, points.mean(0)) for x in points)
    return sum(c - min(math.dist(x, points[j]) for j in chosen) for x in points)


@pytest.mark.parametrize("seed", range(4))
def test_facility_location_is_within_its_guarantee_of_the_optimum(seed: int) -> None:
    points = cloud(11, 2, seed)
    chosen, weights = facility_location(points, 3)
    reached = objective(points.numpy(), tuple(chosen.tolist()))
    best = max(objective(points.numpy(), subset) for subset in combinations(range(11), 3))
    assert (1 - 1 / math.e) * best <= reached <= best + 1e-9
    assert weights.sum() == 11
    assert (weights >= 1).all()


@pytest.mark.parametrize(("n", "k", "d"), [(40, 12, 3), (90, 90, 2), (130, 7, 10)])
def test_facility_location_takes_the_largest_gain_in_every_step(n: int, k: int, d: int) -> None:
    """Points with equal gains, such as mutual nearest neighbors, may come in either order."""
    points = cloud(n, d, n)
    x = points.numpy()
    chosen, weights = facility_location(points, k)
    distance = np.array([[math.dist(a, b) for b in x] for a in x])
    nearest = np.full(n, 2 * max(math.dist(a, x.mean(0)) for a in x))
    for best in chosen.tolist():
        gain = np.maximum(nearest - distance, 0).sum(1)
        assert gain[best] >= gain.max() - 1e-9
        nearest = np.minimum(nearest, distance[best])
    assert len(set(chosen.tolist())) == k
    assert weights.tolist() == np.bincount(distance[chosen.numpy()].argmin(0), minlength=k).tolist()


def test_facility_location_gives_equal_points_separate_weights() -> None:
    chosen, weights = facility_location(torch.ones(6, 2), 4)
    assert len(set(chosen.tolist())) == 4
    assert weights.sum() == 6
    assert (weights >= 1).all()


def test_coreset_weights_approximate_the_full_gradient() -> None:
    """As CRAIG's bound implies: closer than the gradient of equally many random samples with equal weights."""
    labels = np.arange(200) % 2
    logits = cloud(200, 4, 0) * 2
    errors = logits.softmax(1) - torch.nn.functional.one_hot(torch.from_numpy(labels), 4)
    weights = torch.from_numpy(coreset_weights(errors, labels, 0.1))
    assert int((weights > 0).sum()) == 20
    assert weights.sum() == 200
    assert [int((weights[labels == c] > 0).sum()) for c in (0, 1)] == [10, 10]
    full = errors.sum(0)
    coreset = (weights[:, None] * errors).sum(0)
    rng = np.random.default_rng(0)
    distances = [float((errors[rng.permutation(200)[:20]].sum(0) * 10 - full).norm()) for _ in range(200)]
    assert float((coreset - full).norm()) < np.quantile(distances, 0.1)


def test_herding_follows_icarls_algorithm() -> None:
    points = cloud(30, 5, 1)
    x, taken = points.numpy(), []
    mean = x.mean(0)
    for k in range(1, 13):
        so_far = x[taken].sum(0) if taken else np.zeros(5)
        distance = [np.inf if j in taken else np.linalg.norm(mean - (so_far + x[j]) / k) for j in range(30)]
        taken.append(int(np.argmin(distance)))
    assert herding(points, 12).tolist() == taken


@pytest.mark.parametrize("seed", range(6))
def test_matching_pursuit_equals_a_reference_over_full_gradients(seed: int) -> None:
    errors, inputs = cloud(40, 3, seed), cloud(40, 4, 100 + seed).abs()
    mass = torch.rand(40, generator=torch.Generator().manual_seed(seed)).double() + 0.5
    gradients = (errors[:, :, None] * inputs[:, None, :]).flatten(1)
    target = (gradients * mass[:, None]).sum(0)
    chosen, weights = matching_pursuit(errors, inputs, mass, 9, 0.5)
    expected, expected_weights = reference_pursuit(gradients.numpy(), target.numpy(), 9, 0.5)
    assert chosen.tolist() == expected
    assert np.allclose(weights.numpy(), expected_weights, atol=1e-7)
    assert (weights >= 0).all()


def test_facility_location_is_lazy_and_never_builds_a_square_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain greedy selection computes all n gains in each of its steps; the lazy one computes few of them."""
    largest = columns = 0
    cdist = torch.cdist

    def counting_cdist(a: Tensor, b: Tensor) -> Tensor:
        nonlocal largest, columns
        largest, columns = max(largest, a.shape[0] * b.shape[0]), columns + b.shape[0]
        return cdist(a, b)

    monkeypatch.setattr(greedy_selection.torch, "cdist", counting_cdist)
    monkeypatch.setattr(greedy_selection, "MAX_DISTANCES", 1 << 18)
    n, count = 2500, 250
    errors = (cloud(n, 10, 0) * 2).softmax(1).float()
    chosen, _ = facility_location(errors, count)
    assert len(set(chosen.tolist())) == count
    assert largest <= 1 << 18
    assert columns < n * count / 10
