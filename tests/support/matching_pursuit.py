"""A straightforward implementation of matching pursuit, as a reference."""

from __future__ import annotations

import numpy as np


def reference_pursuit(gradients: np.ndarray, target: np.ndarray, count: int, l2: float) -> tuple[list[int], np.ndarray]:
    """Orthogonal matching pursuit with nonnegative weights, using full gradients and the normal equations."""
    chosen: list[int] = []
    tried: set[int] = set()
    weights = np.zeros(0)

    def fit() -> np.ndarray:
        a = gradients[chosen]
        return np.linalg.solve(a @ a.T + l2 * np.eye(len(chosen)), a @ target)

    while len(chosen) < count:
        residual = target - weights @ gradients[chosen] if chosen else target
        score = gradients @ residual
        score[list(tried)] = -np.inf
        best = int(score.argmax())
        if score[best] <= 1e-9:
            break
        chosen.append(best)
        tried.add(best)
        weights = fit()
        while (weights < 0).any():
            chosen.pop(int(weights.argmin()))
            weights = fit()
    return chosen, weights
