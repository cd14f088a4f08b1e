"""Matching pursuit without any cleverness, to hold ours to."""

from __future__ import annotations

import numpy as np


def slow_pursuit(gradients: np.ndarray, target: np.ndarray, count: int, l2: float) -> tuple[list[int], np.ndarray]:
    """Matching pursuit as it is told: whole gradients, least squares by the normal equations."""
    chosen: list[int] = []
    gone: set[int] = set()
    weights = np.zeros(0)

    def fit() -> np.ndarray:
        a = gradients[chosen]
        return np.linalg.solve(a @ a.T + l2 * np.eye(len(chosen)), a @ target)

    while len(chosen) < count:
        residual = target - weights @ gradients[chosen] if chosen else target
        score = gradients @ residual
        score[list(gone)] = -np.inf
        best = int(score.argmax())
        if score[best] <= 1e-9:
            break
        chosen.append(best)
        gone.add(best)
        weights = fit()
        while (weights < 0).any():
            chosen.pop(int(weights.argmin()))
            weights = fit()
    return chosen, weights
