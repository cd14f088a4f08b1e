"""AutoAugment's published policies (Cubuk et al., CVPR'19) and their magnitudes, as in torchvision."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

BINS = 10

# A sub-policy has two steps: operation, probability, magnitude bin (0 if it has none).
Step = tuple[str, float, int]

CIFAR10: list[tuple[Step, Step]] = [
    (("Invert", 0.1, 0), ("Contrast", 0.2, 6)),
    (("Rotate", 0.7, 2), ("TranslateX", 0.3, 9)),
    (("Sharpness", 0.8, 1), ("Sharpness", 0.9, 3)),
    (("ShearY", 0.5, 8), ("TranslateY", 0.7, 9)),
    (("AutoContrast", 0.5, 0), ("Equalize", 0.9, 0)),
    (("ShearY", 0.2, 7), ("Posterize", 0.3, 7)),
    (("Color", 0.4, 3), ("Brightness", 0.6, 7)),
    (("Sharpness", 0.3, 9), ("Brightness", 0.7, 9)),
    (("Equalize", 0.6, 0), ("Equalize", 0.5, 0)),
    (("Contrast", 0.6, 7), ("Sharpness", 0.6, 5)),
    (("Color", 0.7, 7), ("TranslateX", 0.5, 8)),
    (("Equalize", 0.3, 0), ("AutoContrast", 0.4, 0)),
    (("TranslateY", 0.4, 3), ("Sharpness", 0.2, 6)),
    (("Brightness", 0.9, 6), ("Color", 0.2, 8)),
    (("Solarize", 0.5, 2), ("Invert", 0.0, 0)),
    (("Equalize", 0.2, 0), ("AutoContrast", 0.6, 0)),
    (("Equalize", 0.2, 0), ("Equalize", 0.6, 0)),
    (("Color", 0.9, 9), ("Equalize", 0.6, 0)),
    (("AutoContrast", 0.8, 0), ("Solarize", 0.2, 8)),
    (("Brightness", 0.1, 3), ("Color", 0.7, 0)),
    (("Solarize", 0.4, 5), ("AutoContrast", 0.9, 0)),
    (("TranslateY", 0.9, 9), ("TranslateY", 0.7, 9)),
    (("AutoContrast", 0.9, 0), ("Solarize", 0.8, 3)),
    (("Equalize", 0.8, 0), ("Invert", 0.1, 0)),
    (("TranslateY", 0.7, 9), ("AutoContrast", 0.9, 0)),
]

IMAGENET: list[tuple[Step, Step]] = [
    (("Posterize", 0.4, 8), ("Rotate", 0.6, 9)),
    (("Solarize", 0.6, 5), ("AutoContrast", 0.6, 0)),
    (("Equalize", 0.8, 0), ("Equalize", 0.6, 0)),
    (("Posterize", 0.6, 7), ("Posterize", 0.6, 6)),
    (("Equalize", 0.4, 0), ("Solarize", 0.2, 4)),
    (("Equalize", 0.4, 0), ("Rotate", 0.8, 8)),
    (("Solarize", 0.6, 3), ("Equalize", 0.6, 0)),
    (("Posterize", 0.8, 5), ("Equalize", 1.0, 0)),
    (("Rotate", 0.2, 3), ("Solarize", 0.6, 8)),
    (("Equalize", 0.6, 0), ("Posterize", 0.4, 6)),
    (("Rotate", 0.8, 8), ("Color", 0.4, 0)),
    (("Rotate", 0.4, 9), ("Equalize", 0.6, 0)),
    (("Equalize", 0.0, 0), ("Equalize", 0.8, 0)),
    (("Invert", 0.6, 0), ("Equalize", 1.0, 0)),
    (("Color", 0.6, 4), ("Contrast", 1.0, 8)),
    (("Rotate", 0.8, 8), ("Color", 1.0, 2)),
    (("Color", 0.8, 8), ("Solarize", 0.8, 7)),
    (("Sharpness", 0.4, 7), ("Invert", 0.6, 0)),
    (("ShearX", 0.6, 5), ("Equalize", 1.0, 0)),
    (("Color", 0.4, 0), ("Equalize", 0.6, 0)),
    (("Equalize", 0.4, 0), ("Solarize", 0.2, 4)),
    (("Solarize", 0.6, 5), ("AutoContrast", 0.6, 0)),
    (("Invert", 0.6, 0), ("Equalize", 1.0, 0)),
    (("Color", 0.6, 4), ("Contrast", 1.0, 8)),
    (("Equalize", 0.8, 0), ("Equalize", 0.6, 0)),
]

POLICIES = {"cifar10": CIFAR10, "imagenet": IMAGENET}

# The index of an operation is its code in the draws: 0 is the identity, then the geometric operations follow.
OPERATION_NAMES = (
    *("Identity", "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate"),
    *("Brightness", "Contrast", "Posterize", "Solarize", "AutoContrast", "Equalize", "Invert"),
    *("Color", "Sharpness"),
)
SIGNED = frozenset(
    {"ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Brightness", "Color", "Contrast", "Sharpness"}
)


def policies() -> list[str]:
    """Names that `Augment(policy=...)` accepts."""
    return sorted(POLICIES)


def magnitudes(name: str, height: int, width: int) -> Tensor:
    """Magnitudes of the ten bins of operation `name` for images of this size: float64 `[10]`.

    Shear: tangent of the angle; translation: pixels (truncated by the operation); rotation: degrees; enhancements:
    difference of the factor from 1; posterize: bits kept; solarize: threshold. The bins are spaced in float32 and then
    converted, because that is what torchvision passes to Pillow.
    """
    if name == "Posterize":
        return 8 - (torch.arange(BINS, dtype=torch.float64) / ((BINS - 1) / 4)).round()
    start, end = {
        "ShearX": (0.0, 0.3),
        "ShearY": (0.0, 0.3),
        "TranslateX": (0.0, 150.0 / 331.0 * width),
        "TranslateY": (0.0, 150.0 / 331.0 * height),
        "Rotate": (0.0, 30.0),
        "Brightness": (0.0, 0.9),
        "Color": (0.0, 0.9),
        "Contrast": (0.0, 0.9),
        "Sharpness": (0.0, 0.9),
        "Solarize": (255.0, 0.0),
    }.get(name, (0.0, 0.0))
    return torch.linspace(start, end, BINS, dtype=torch.float32).double()


def signed(name: str, height: int, width: int) -> Tensor:
    """Magnitudes of the signed bins from 1 - BINS to BINS - 1: float64 `[2 * BINS - 1]`."""
    values = magnitudes(name, height, width)
    return torch.cat([-values[1:].flip(0), values])


@lru_cache(maxsize=8)
def _arrays(policy: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """A policy's operations, probabilities and bins, each `[sub-policies, 2]`; and which operations are signed."""
    table = POLICIES[policy]
    codes = np.array([[OPERATION_NAMES.index(name) for name, _, _ in steps] for steps in table])
    probabilities = np.array([[p for _, p, _ in steps] for steps in table])
    bins = np.array([[b for _, _, b in steps] for steps in table])
    return codes, probabilities, bins, np.array([name in SIGNED for name in OPERATION_NAMES])


def draw(policy: str, rng: np.random.Generator, n: int) -> tuple[Tensor, Tensor]:
    """Draw the steps of a policy for n samples.

    A sub-policy is drawn uniformly, each of its steps is applied with its probability, and the sign of a signed
    operation is drawn with probability one half.

    Returns:
        Operations of both steps (int64 `[n, 2]`, 0 where a step is not applied) and their signed bins (same shape).
    """
    codes, probabilities, bins, has_sign = _arrays(policy)
    which = rng.integers(len(codes), size=n)
    applied = rng.random((n, 2)) <= probabilities[which]
    negative = rng.integers(2, size=(n, 2)) == 0
    ops = np.where(applied, codes[which], 0)
    levels = np.where(applied, bins[which], 0)
    levels = np.where(negative & has_sign[ops], -levels, levels)
    return torch.from_numpy(ops), torch.from_numpy(levels)
