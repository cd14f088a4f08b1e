"""Greedy selection that scales: facility location, herding, and matching pursuit in last-layer gradient space.

All three look at one block of columns at a time; nothing here is ever `n x n`.
"""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 32  # candidates whose gain is computed anew at once
CELLS = 1 << 22  # distances held at once


def facility_location(points: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """A weighted coreset of `points` `[n, d]` (CRAIG, Mirzasoleiman et al., 2020): chosen `[count]`, weights `[count]`.

    Maximises F(S) = Σ_i (c - min_{j in S} |x_i - x_j|), with c no smaller than any distance, by the greedy rule, so
    that F is at least 1 - 1/e of the best. Lazily (Minoux, 1978): a gain only shrinks as S grows, so a candidate whose
    old gain is already below another's new one need not be looked at. A chosen point's weight is how many points are
    nearest to it; weights sum to n.
    """
    n = len(points)
    count = min(count, n)
    nearest = torch.full((n,), _farthest(points), dtype=points.dtype, device=points.device)
    owner = torch.zeros(n, dtype=torch.int64, device=points.device)
    gains = torch.cat([_gains(points, nearest, part) for part in torch.arange(n, device=points.device).split(_rows(n))])
    fresh = torch.zeros(n, dtype=torch.int64, device=points.device)  # the step a gain was computed at
    chosen: list[int] = []
    for step in range(count):
        while True:
            best = int(gains.argmax())
            if int(fresh[best]) == step:
                break
            stale = torch.where(fresh < step, gains, -torch.inf).topk(min(BLOCK, n)).indices
            gains[stale] = torch.where(gains[stale] == -torch.inf, -torch.inf, _gains(points, nearest, stale))
            fresh[stale] = step
        chosen.append(best)
        gains[best] = -torch.inf  # and stays there
        distance = torch.cdist(points, points[best : best + 1])[:, 0]
        closer = distance < nearest
        closer[best] = True
        owner[closer] = step
        nearest = torch.where(closer, distance, nearest)
    return torch.tensor(chosen, dtype=torch.int64), torch.bincount(owner, minlength=count).cpu()


def _gains(points: Tensor, nearest: Tensor, which: Tensor) -> Tensor:
    """How much F grows with each of the candidates `which` `[b]`."""
    return (nearest[:, None] - torch.cdist(points, points[which])).clamp_(min=0).sum(0)


def _farthest(points: Tensor) -> float:
    """A bound on all distances: twice the largest from the mean."""
    return 2 * float((points - points.mean(0)).norm(dim=1).max())


def _rows(n: int) -> int:
    return max(1, CELLS // n)


def herding(points: Tensor, count: int) -> Tensor:
    """The order in which iCaRL's herding takes `points` `[n, d]`: `[count]` (Rebuffi et al., 2017, algorithm 4).

    Each next point brings the mean of those taken as near as it gets to the mean of all.
    """
    mean = points.mean(0)
    towards, square = points @ mean, (points * points).sum(1)
    along = torch.zeros_like(towards)  # points @ (sum of those taken)
    taken: list[int] = []
    for k in range(1, min(count, len(points)) + 1):
        # |mean - (s + x) / k|² up to what does not depend on x
        distance = (2 * along + square) / k**2 - 2 * towards / k
        distance[taken] = torch.inf
        best = int(distance.argmin())
        taken.append(best)
        along += points @ points[best]
    return torch.tensor(taken, dtype=torch.int64)


def matching_pursuit(errors: Tensor, inputs: Tensor, mass: Tensor, count: int, l2: float) -> tuple[Tensor, Tensor]:
    """Few gradients with weights that stand for all of them: chosen `[at most count]`, weights, none negative.

    Gradient i is the outer product of `errors` i `[c]` and `inputs` i `[d]`, as a linear layer's is; it is never
    written out. Orthogonal matching pursuit (GRAD-MATCH, Killamsetty et al., 2021) towards Σ_i mass_i g_i: take the
    gradient that points most along what is left, fit all weights anew by least squares with `l2`, drop the most
    negative until none is. What was dropped does not come back; nothing that points along the rest: stop.
    """
    errors, inputs, mass = errors.double(), inputs.double(), mass.double()
    target = (errors * mass[:, None]).T @ inputs
    towards = ((errors @ target) * inputs).sum(1)
    out = torch.zeros(len(errors), dtype=torch.bool, device=errors.device)
    chosen: list[int] = []
    rows = errors.new_zeros(0, len(errors))  # inner products of the chosen with all
    weights = errors.new_zeros(0)
    while len(chosen) < min(count, len(errors)):
        left = torch.where(out, -torch.inf, towards - weights @ rows)
        best = int(left.argmax())
        if float(left[best]) <= 1e-12 * float(towards.abs().max()):
            break
        chosen.append(best)
        out[best] = True
        rows = torch.cat([rows, ((errors @ errors[best]) * (inputs @ inputs[best]))[None]])
        weights = _fit(rows, towards, chosen, l2)
        while float(weights.min()) < 0:
            worst = int(weights.argmin())
            chosen.pop(worst)
            rows = torch.cat([rows[:worst], rows[worst + 1 :]])
            weights = _fit(rows, towards, chosen, l2)
    return torch.tensor(chosen, dtype=torch.int64), weights.cpu()


def _fit(rows: Tensor, towards: Tensor, chosen: list[int], l2: float) -> Tensor:
    """argmin_w |Σ w_j g_j - target|² + l2 |w|² over the chosen."""
    gram = rows[:, chosen].cpu()  # small, and PyTorch's solvers for a GPU fail if two lanes are the first to ask
    scale = l2 + 1e-10 * float(gram.diagonal().max())  # two equal gradients have no unique answer
    gram = gram + scale * torch.eye(len(chosen), dtype=gram.dtype)
    weights: Tensor = torch.linalg.solve(gram, towards[chosen].cpu())
    return weights.to(rows.device)
