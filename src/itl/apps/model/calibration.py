"""Calibrate a classifier on held-out images: a temperature for its probabilities and a threshold for "unknown".

The temperature T divides the logits: softmax(logits / T) does not change the predicted class, only how probable it is
(Guo et al.: On Calibration of Modern Neural Networks, ICML 2017). The threshold is an order statistic of the scores of
held-out images, so a further image of a known class falls below it with a probability of at most
`FALSE_REJECTION_RATE` (split conformal prediction).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor

FALSE_REJECTION_RATE = 0.05  # share of the images of known classes that may be shown as unknown
MIN_IMAGES = math.ceil(1 / FALSE_REJECTION_RATE)  # held-out images: with fewer, nothing is fitted
TEMPERATURES = (0.01, 100.0)  # bounds of the search
ScoreName = Literal["probability", "relative distance"]
FORMER_SCORE = "familiarity"  # another distance, in folders of earlier versions: their thresholds are dropped


@dataclass(frozen=True)
class Outputs:
    """What a model computes for images.

    Attributes:
        logits: `[n, outputs]`, on the CPU.
        familiarity: How much each image resembles the images learned `[n]`; None if the method cannot tell.
    """

    logits: Tensor
    familiarity: Tensor | None = None

    @classmethod
    def join(cls, parts: Sequence[Outputs]) -> Outputs:
        """Return the outputs for several sets of images as one."""
        familiarity = [part.familiarity for part in parts if part.familiarity is not None]
        return cls(torch.cat([part.logits for part in parts]), torch.cat(familiarity) if familiarity else None)


@dataclass(frozen=True)
class Predictions:
    """Calibrated predictions.

    Attributes:
        classes: Class names.
        probabilities: float64 `[n, classes]`.
        unknown: Which images belong to none of the classes, bool `[n]`.
        scores: What decides that, `[n]`: unknown images have a low score.
    """

    classes: list[str]
    probabilities: np.ndarray
    unknown: np.ndarray
    scores: np.ndarray

    @property
    def labels(self) -> np.ndarray:
        """Most probable class of each image `[n]`, of unknown images too."""
        return np.asarray(np.array(self.classes)[self.probabilities.argmax(1)])


class Calibration(BaseModel):
    """How a model's logits become probabilities, and which images it rejects.

    Attributes:
        temperature: Divides the logits.
        threshold: Images with a lower score are unknown; None: no image is.
        score: The score: the highest probability, or the familiarity by its relative distance to the classes.
        images: Number of held-out images that both were fitted on; 0: not fitted.
    """

    model_config = ConfigDict(frozen=True, strict=True)

    temperature: float = Field(default=1.0, ge=TEMPERATURES[0] / 10, le=TEMPERATURES[1] * 10)  # others overflow
    threshold: float | None = Field(default=None, allow_inf_nan=False)
    score: ScoreName = "probability"
    images: int = Field(default=0, ge=0)

    @model_validator(mode="before")
    @classmethod
    def _without_former_threshold(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("score") == FORMER_SCORE:
            return {"temperature": values.get("temperature", 1.0)}
        return values

    def is_unknown(self, scores: np.ndarray, name: ScoreName) -> np.ndarray:
        """Return which images belong to none of the classes, bool `[n]`, by their scores."""
        if self.threshold is None or name != self.score:
            return np.zeros(len(scores), bool)
        return np.asarray(scores < self.threshold)

    def without_threshold(self) -> Calibration:
        """Return the calibration for weights that have changed since: nothing is rejected."""
        return Calibration(temperature=self.temperature)

    @property
    def rule(self) -> str:
        """Which images are shown as unknown, in words."""
        if self.threshold is None:
            return f"No picture is shown as unknown: a lesson must hold out {MIN_IMAGES} pictures for testing first."
        low = f"no class reaches {self.threshold:.1%}" if self.score == "probability" else "it resembles no class"
        return (
            f"A picture is shown as unknown if {low}. This holds for at most {FALSE_REJECTION_RATE:.0%} of the "
            f"{self.images} held-out pictures of known classes."
        )


def rejection_scores(outputs: Outputs, probabilities: np.ndarray) -> tuple[np.ndarray, ScoreName]:
    """Return the scores `[n]` that are compared with the threshold, and their name."""
    if outputs.familiarity is not None:
        return outputs.familiarity.numpy(), "relative distance"
    return np.asarray(probabilities.max(1)), "probability"


def class_probabilities(logits: Tensor, output_classes: Tensor, temperature: float = 1.0) -> Tensor:
    """Return probabilities, float64 `[n, classes]`.

    Args:
        logits: `[n, outputs]`.
        output_classes: Which output belongs to which class, `[outputs, classes]` of 0 and 1.
        temperature: Divides the logits.
    """
    return (logits.double() / temperature).softmax(1) @ output_classes.double()


def fit_calibration(outputs: Outputs, labels: Tensor, output_classes: Tensor) -> Calibration | None:
    """Return the calibration that suits held-out images; None if there are fewer than `MIN_IMAGES`.

    Args:
        outputs: Outputs for n images.
        labels: Class of each image `[n]`, a column of `output_classes`.
        output_classes: Which output belongs to which class, `[outputs, classes]` of 0 and 1.
    """
    if len(labels) < MIN_IMAGES:
        return None
    temperature = fit_temperature(outputs.logits, labels, output_classes)
    probabilities = class_probabilities(outputs.logits, output_classes, temperature).numpy()
    scores, name = rejection_scores(outputs, probabilities)
    return Calibration(temperature=temperature, threshold=fit_threshold(scores), score=name, images=len(labels))


def fit_temperature(logits: Tensor, labels: Tensor, output_classes: Tensor) -> float:
    """Return the temperature with the smallest cross-entropy.

    The targets are smoothed by one image in n + 2, as in Platt scaling: if all images are classified correctly, the
    temperature would otherwise become zero.
    """
    count, classes = len(labels), output_classes.shape[1]
    if classes < 2:
        return 1.0
    smoothing = 1 / (count + 2)
    targets = torch.full((count, classes), smoothing / (classes - 1), dtype=torch.float64)
    targets[torch.arange(count), labels] = 1 - smoothing
    tiny = torch.finfo(torch.float64).tiny

    def cross_entropy(log_temperature: float) -> float:
        probabilities = class_probabilities(logits, output_classes, math.exp(log_temperature))
        return -float((targets * probabilities.clamp(min=tiny).log()).sum(1).mean())

    return math.exp(_minimum(cross_entropy, math.log(TEMPERATURES[0]), math.log(TEMPERATURES[1])))


def _minimum(function: Callable[[float], float], low: float, high: float, tolerance: float = 1e-6) -> float:
    """Return where a function with one minimum is smallest, by golden-section search.

    SciPy's search needs fewer calls, but importing it takes longer than all of them.
    """
    ratio = (math.sqrt(5) - 1) / 2
    inner = [high - ratio * (high - low), low + ratio * (high - low)]
    values = [function(x) for x in inner]
    while high - low > tolerance:
        if values[0] < values[1]:
            high, inner = inner[1], [inner[1] - ratio * (inner[1] - low), inner[0]]
            values = [function(inner[0]), values[0]]
        else:
            low, inner = inner[0], [inner[1], inner[0] + ratio * (high - inner[0])]
            values = [values[1], function(inner[1])]
    return (low + high) / 2


def fit_threshold(scores: np.ndarray) -> float | None:
    """Return the threshold below which at most `FALSE_REJECTION_RATE` of images like these are expected.

    It is the k-th smallest of the n scores with k = ⌊rate · (n + 1)⌋; None if k is 0.
    """
    rank = math.floor(FALSE_REJECTION_RATE * (len(scores) + 1))
    return float(np.sort(scores)[rank - 1]) if rank else None
