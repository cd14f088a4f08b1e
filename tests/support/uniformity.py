"""A test of whether random choices are equally likely."""

from __future__ import annotations

import numpy as np


def chi_square(counts: np.ndarray) -> float:
    """Pearson's chi-squared statistic for equal expected counts, in standard deviations above its mean."""
    expected = counts.sum() / counts.size
    freedom = counts.size - 1
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / (2 * freedom) ** 0.5)
