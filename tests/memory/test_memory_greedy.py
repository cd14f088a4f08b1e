"""Greedy selection: within its guarantee of the best, the same as a slow one written plainly, and quick."""

from __future__ import annotations

import math
import time
from itertools import combinations

import numpy as np
import pytest
import torch
from torch import Tensor

from itl.memory import greedy_selection
from itl.memory.greedy_selection import facility_location, herding, matching_pursuit
from itl.memory.policies.coreset import coreset_weights
from support.matching_pursuit import slow_pursuit


def cloud(n: int, d: int, seed: int) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def objective(points: np.ndarray, chosen: tuple[int, ...]) -> float:
    """F(S) = Σ_i (c - distance to the nearest in S), written out; c is twice the largest distance from the mean."""
    c = 2 * max(math.dist(x, points.mean(0)) for x in points)
    return sum(c - min(math.dist(x, points[j]) for j in chosen) for x in points)


@pytest.mark.parametrize("seed", range(4))
def test_the_coresets_objective_is_within_its_guarantee_of_the_optimum(seed: int) -> None:
    points = cloud(11, 2, seed)
    chosen, weights = facility_location(points, 3)
    reached = objective(points.numpy(), tuple(chosen.tolist()))
    best = max(objective(points.numpy(), subset) for subset in combinations(range(11), 3))
    assert (1 - 1 / math.e) * best <= reached <= best + 1e-9
    assert weights.sum() == 11
    assert (weights >= 1).all()


@pytest.mark.parametrize(("n", "k", "d"), [(40, 12, 3), (90, 90, 2), (130, 7, 10)])
def test_lazy_selection_takes_the_best_of_all_at_every_step(n: int, k: int, d: int) -> None:
    """Two points that gain the same (each other's neighbours do) may come in either order."""
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


def test_equal_points_each_have_a_weight_of_their_own() -> None:
    chosen, weights = facility_location(torch.ones(6, 2), 4)
    assert len(set(chosen.tolist())) == 4
    assert weights.sum() == 6
    assert (weights >= 1).all()


def test_the_weighted_gradient_of_a_coreset_follows_the_whole_gradient() -> None:
    """What CRAIG's bound is about: nearer than the same number of random samples with equal weights."""
    labels = np.arange(200) % 2
    logits = cloud(200, 4, 0) * 2
    errors = logits.softmax(1) - torch.nn.functional.one_hot(torch.from_numpy(labels), 4)
    weights = torch.from_numpy(coreset_weights(errors, labels, 0.1))
    assert int((weights > 0).sum()) == 20
    assert weights.sum() == 200
    assert [int((weights[labels == c] > 0).sum()) for c in (0, 1)] == [10, 10]
    whole = errors.sum(0)
    ours = (weights[:, None] * errors).sum(0)
    rng = np.random.default_rng(0)
    apart = [float((errors[rng.permutation(200)[:20]].sum(0) * 10 - whole).norm()) for _ in range(200)]
    assert float((ours - whole).norm()) < np.quantile(apart, 0.1)


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
def test_matching_pursuit_is_the_slow_one_over_whole_gradients(seed: int) -> None:
    errors, inputs = cloud(40, 3, seed), cloud(40, 4, 100 + seed).abs()
    mass = torch.rand(40, generator=torch.Generator().manual_seed(seed)).double() + 0.5
    whole = (errors[:, :, None] * inputs[:, None, :]).flatten(1)
    target = (whole * mass[:, None]).sum(0)
    chosen, weights = matching_pursuit(errors, inputs, mass, 9, 0.5)
    expected, theirs = slow_pursuit(whole.numpy(), target.numpy(), 9, 0.5)
    assert chosen.tolist() == expected
    assert np.allclose(weights.numpy(), theirs, atol=1e-7)
    assert (weights >= 0).all()


def test_ten_thousand_candidates_are_selected_from_in_seconds_without_a_square_matrix(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A tenth of the size here, with a tenth of the time for each tenth: 2,500 to 250 in well under a second."""
    widest = 0
    plain = torch.cdist

    def watched(a: Tensor, b: Tensor) -> Tensor:
        nonlocal widest
        widest = max(widest, a.shape[0] * b.shape[0])
        return plain(a, b)

    monkeypatch.setattr(greedy_selection.torch, "cdist", watched)
    monkeypatch.setattr(greedy_selection, "CELLS", 1 << 18)
    errors = (cloud(2500, 10, 0) * 2).softmax(1).float()
    begun = time.perf_counter()
    chosen, _ = facility_location(errors, 250)
    assert time.perf_counter() - begun < 3  # 0.3 on an idle core; the machine may be busy
    assert len(set(chosen.tolist())) == 250
    assert widest <= 1 << 18
