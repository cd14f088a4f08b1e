"""AutoAugment's published policies (Cubuk et al., CVPR'19) and what their magnitudes mean, as torchvision has them."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

BINS = 10

# A sub-policy is two steps: an operation, its probability, its magnitude's bin (0 where it takes none).
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

# An operation's number in the draws is its place here: 0 leaves the sample as it is, the geometric ones follow.
NAMES = (
    *("Identity", "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate"),
    *("Brightness", "Contrast", "Posterize", "Solarize", "AutoContrast", "Equalize", "Invert"),
    *("Color", "Sharpness"),
)
SIGNED = frozenset(
    {"ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Brightness", "Color", "Contrast", "Sharpness"}
)


def policies() -> list[str]:
    """The names `Augment(policy=...)` knows."""
    return sorted(POLICIES)


def magnitudes(name: str, height: int, width: int) -> Tensor:
    """What the ten bins of operation `name` mean for images of this size: float64 [10].

    Shear: the tangent; translation: pixels (the operation drops the fraction); rotation: degrees; enhancements: how far
    the factor lies from 1; posterize: bits kept; solarize: the threshold. The bins are spaced in float32 and only then
    widened, for that is what torchvision hands to Pillow.
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
    """The same for every signed bin, from 1 - BINS to BINS - 1: float64 [2 * BINS - 1]."""
    values = magnitudes(name, height, width)
    return torch.cat([-values[1:].flip(0), values])


@lru_cache(maxsize=8)
def _arrays(policy: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """A policy's operations, chances and bins, [sub-policies, 2] each; which operations have a sign."""
    table = POLICIES[policy]
    codes = np.array([[NAMES.index(name) for name, _, _ in steps] for steps in table])
    chances = np.array([[p for _, p, _ in steps] for steps in table])
    bins = np.array([[b for _, _, b in steps] for steps in table])
    return codes, chances, bins, np.array([name in SIGNED for name in NAMES])


def draw(policy: str, rng: np.random.Generator, n: int) -> tuple[Tensor, Tensor]:
    """For n samples, the operation of both steps (int64 [n, 2], 0 where it is not applied) and its signed bin (same).

    A sub-policy is drawn uniformly, each of its steps is applied with its own probability, and the sign of a signed
    operation is a fair coin.
    """
    codes, chances, bins, has_sign = _arrays(policy)
    which = rng.integers(len(codes), size=n)
    applied = rng.random((n, 2)) <= chances[which]
    negative = rng.integers(2, size=(n, 2)) == 0
    ops = np.where(applied, codes[which], 0)
    levels = np.where(applied, bins[which], 0)
    levels = np.where(negative & has_sign[ops], -levels, levels)
    return torch.from_numpy(ops), torch.from_numpy(levels)
