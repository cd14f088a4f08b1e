"""Greedy selection: facility location, herding, and matching pursuit on gradients of the last layer.

No function builds an `n x n` matrix, so thousands of candidates are no problem.
"""

from __future__ import annotations

import torch
from torch import Tensor

GAIN_BLOCK = 32  # candidates whose gains are updated at once
MAX_DISTANCES = 1 << 22  # distances in memory at once


def facility_location(points: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Select a weighted coreset (CRAIG, Mirzasoleiman et al., 2020).

    Maximizes F(S) = Σ_i (c - min_{j in S} |x_i - x_j|), where c is at least every distance. Greedy selection reaches at
    least 1 - 1/e of the maximum. It is lazy (Minoux, 1978): gains only shrink as S grows, so a candidate whose old gain
    is below another candidate's current gain need not be updated.

    Args:
        points: `[n, d]`.
        count: Number of points to select.

    Returns:
        Indices of the selected points `[count]`, and their weights `[count]`: the number of points whose nearest
        selected point it is, n in total.
    """
    n = len(points)
    count = min(count, n)
    nearest = torch.full((n,), _farthest(points), dtype=points.dtype, device=points.device)
    owner = torch.zeros(n, dtype=torch.int64, device=points.device)
    gains = torch.cat(
        [_gains(points, nearest, block) for block in torch.arange(n, device=points.device).split(_max_columns(n))]
    )
    updated = torch.zeros(n, dtype=torch.int64, device=points.device)  # step at which each gain was computed
    chosen: list[int] = []
    for step in range(count):
        while True:
            best = int(gains.argmax())
            if int(updated[best]) == step:
                break
            stale = torch.where(updated < step, gains, -torch.inf).topk(min(GAIN_BLOCK, n)).indices
            gains[stale] = torch.where(gains[stale] == -torch.inf, -torch.inf, _gains(points, nearest, stale))
            updated[stale] = step
        chosen.append(best)
        gains[best] = -torch.inf  # never selected again
        distance = torch.cdist(points, points[best : best + 1])[:, 0]
        closer = distance < nearest
        closer[best] = True
        owner[closer] = step
        nearest = torch.where(closer, distance, nearest)
    return torch.tensor(chosen, dtype=torch.int64), torch.bincount(owner, minlength=count).cpu()


def _gains(points: Tensor, nearest: Tensor, candidates: Tensor) -> Tensor:
    """Increase of F by each of the `candidates` `[b]`, given the distance of each point to S, `nearest` `[n]`."""
    return (nearest[:, None] - torch.cdist(points, points[candidates])).clamp_(min=0).sum(0)


def _farthest(points: Tensor) -> float:
    """Upper bound of all distances: twice the largest distance from the mean."""
    return 2 * float((points - points.mean(0)).norm(dim=1).max())


def _max_columns(n: int) -> int:
    """Number of candidates whose distances to n points may be in memory at once."""
    return max(1, MAX_DISTANCES // n)


def herding(points: Tensor, count: int) -> Tensor:
    """Select points by iCaRL's herding (Rebuffi et al., 2017, algorithm 4).

    Each selected point brings the mean of the selection as close as possible to the mean of all points.

    Args:
        points: `[n, d]`.
        count: Number of points to select.

    Returns:
        Indices in order of selection, int64 `[count]`.
    """
    mean = points.mean(0)
    mean_products, squares = points @ mean, (points * points).sum(1)
    sum_products = torch.zeros_like(mean_products)  # points @ (sum of the selection)
    selected: list[int] = []
    for k in range(1, min(count, len(points)) + 1):
        # |mean - (s + x) / k|² without the terms that do not depend on x
        distance = (2 * sum_products + squares) / k**2 - 2 * mean_products / k
        distance[selected] = torch.inf
        best = int(distance.argmin())
        selected.append(best)
        sum_products += points @ points[best]
    return torch.tensor(selected, dtype=torch.int64)


def matching_pursuit(errors: Tensor, inputs: Tensor, mass: Tensor, count: int, l2: float) -> tuple[Tensor, Tensor]:
    """Approximate a weighted sum of gradients by few of them (GRAD-MATCH, Killamsetty et al., 2021).

    Gradient g_i of a linear layer is the outer product of its error and its input; it is never materialized. Orthogonal
    matching pursuit approximates Σ_i mass_i g_i: select the gradient with the largest inner product with the residual,
    fit all weights by least squares with penalty `l2`, and drop the most negative weight until none is negative.
    Dropped gradients are not selected again. It stops early if no gradient has a positive inner product with the
    residual.

    Args:
        errors: Gradients with respect to the layer's outputs, `[n, c]`.
        inputs: Inputs of the layer, `[n, d]`.
        mass: Weights of the sum to approximate, `[n]`.
        count: Maximum number of gradients to select.
        l2: Penalty of the least-squares fit.

    Returns:
        Indices of the selected gradients `[at most count]`, and their weights, which are not negative.
    """
    errors, inputs, mass = errors.double(), inputs.double(), mass.double()
    target = (errors * mass[:, None]).T @ inputs
    target_products = ((errors @ target) * inputs).sum(1)
    excluded = torch.zeros(len(errors), dtype=torch.bool, device=errors.device)
    chosen: list[int] = []
    rows = errors.new_zeros(0, len(errors))  # inner products of the selected gradients with all
    weights = errors.new_zeros(0)
    while len(chosen) < min(count, len(errors)):
        residual_products = torch.where(excluded, -torch.inf, target_products - weights @ rows)
        best = int(residual_products.argmax())
        if float(residual_products[best]) <= 1e-12 * float(target_products.abs().max()):
            break
        chosen.append(best)
        excluded[best] = True
        rows = torch.cat([rows, ((errors @ errors[best]) * (inputs @ inputs[best]))[None]])
        weights = _fit(rows, target_products, chosen, l2)
        while float(weights.min()) < 0:
            worst = int(weights.argmin())
            chosen.pop(worst)
            rows = torch.cat([rows[:worst], rows[worst + 1 :]])
            weights = _fit(rows, target_products, chosen, l2)
    return torch.tensor(chosen, dtype=torch.int64), weights.cpu()


def _fit(rows: Tensor, target_products: Tensor, chosen: list[int], l2: float) -> Tensor:
    """argmin_w |Σ w_j g_j - target|² + l2 |w|² over the selected gradients."""
    gram = rows[:, chosen].cpu()  # small, and PyTorch's GPU solvers fail if two concurrent runs initialize them at once
    scale = l2 + 1e-10 * float(gram.diagonal().max())  # makes the solution unique for equal gradients
    gram = gram + scale * torch.eye(len(chosen), dtype=gram.dtype)
    weights: Tensor = torch.linalg.solve(gram, target_products[chosen].cpu())
    return weights.to(rows.device)
