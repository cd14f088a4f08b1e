"""Predict with a model, in batches, with calibrated probabilities; fit its calibration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from itl.apps.model.calibration import (
    Calibration,
    Outputs,
    Predictions,
    class_probabilities,
    fit_calibration,
    rejection_scores,
)
from itl.apps.model.metadata import ImageSpec
from itl.errors import UserError
from itl.learner import Learner
from itl.learner.inference import compute_outputs
from itl.learner.inputs import ImageData, images_to_predict, is_array_like
from itl.streams import Images
from itl.streams.arrays import as_pixels


class PredictionMixin:
    """The methods of `Model` that predict, and that calibrate the predictions. See `Model` for the attributes."""

    path: Path
    learner: Learner
    output_names: list[str]
    image: ImageSpec
    calibration: Calibration

    @property
    def classes(self) -> list[str]:
        """The class names in the order in which they were taught; merged classes appear once."""
        return list(dict.fromkeys(self.output_names))

    def predict(self, images: Images | ImageData) -> np.ndarray:
        """Return the most probable class of each image.

        Args:
            images: Images of the model's size, uint8 `[n, c, h, w]` or any other form that `Learner.predict` takes.

        Returns:
            Class names, `[n]`.

        Raises:
            UserError: If the model has not learned anything, or the images have another shape.
        """
        return np.asarray(np.array(self.classes)[self.predict_proba(images).argmax(1)])

    def predict_proba(self, images: Images | ImageData) -> np.ndarray:
        """Return the probability of each class for each image, calibrated by `calibrate`.

        Args:
            images: Images of the model's size, uint8 `[n, c, h, w]` or any other form that `Learner.predict` takes.

        Returns:
            Probabilities, float64 `[n, classes]`, in the order of `classes`.

        Raises:
            UserError: If the model has not learned anything, or the images have another shape.
        """
        return self.classify(images).probabilities

    def classify(self, images: Images | ImageData) -> Predictions:
        """Return the probabilities, and which images belong to none of the classes, for what `predict_proba` takes."""
        return self.predictions(self.outputs(images))

    def outputs(self, images: Images | ImageData, remember: bool = False) -> Outputs:
        """Return what the network computes, for `predictions` and `calibrate`.

        Args:
            images: Images as for `predict_proba`.
            remember: Keep the features of a frozen trunk in the cache, for images that will be evaluated again.
        """
        with out_of_memory_as_user_error(self.path):
            return Outputs(*compute_outputs(self.learner, self._as_images(images), remember))

    def predictions(self, outputs: Outputs) -> Predictions:
        """Return the calibrated predictions for the network's outputs."""
        temperature = self.calibration.temperature
        probabilities = class_probabilities(outputs.logits, self.output_class_matrix(), temperature).numpy()
        scores, name = rejection_scores(outputs, probabilities)
        return Predictions(self.classes, probabilities, self.calibration.is_unknown(scores, name), scores)

    def calibrate(self, outputs: Outputs, labels: Sequence[str]) -> None:
        """Fit temperature and threshold to images that were not trained on. Saves nothing.

        With fewer than `calibration.MIN_IMAGES` images the temperature stays as it is and no image is unknown.

        Args:
            outputs: What `outputs` returns for these images.
            labels: Class name of each image; all of them are known to the model.
        """
        columns = torch.tensor([self.classes.index(name) for name in labels], dtype=torch.int64)
        fitted = fit_calibration(outputs, columns, self.output_class_matrix())
        self.calibration = fitted or self.calibration.without_threshold()

    def _as_images(self, images: Images | ImageData) -> Images:
        if isinstance(images, Images | DataLoader) or not is_array_like(images):
            return images_to_predict(images)
        shape = tuple(getattr(images, "shape", ()))
        channels_first = len(shape) == 4 and shape[1] == self.image["channels"]
        pixels = as_pixels(images, "NCHW" if channels_first else None)
        return Images(pixels, torch.zeros(len(pixels), dtype=torch.int64))

    def output_class_matrix(self) -> Tensor:
        """Return which output belongs to which class, `[outputs, classes]` of 0 and 1."""
        columns = {name: column for column, name in enumerate(self.classes)}
        matrix = torch.zeros(len(self.output_names), len(columns))
        for output, name in enumerate(self.output_names):
            matrix[output, columns[name]] = 1
        return matrix


@contextmanager
def out_of_memory_as_user_error(path: Path) -> Iterator[None]:
    """Turn a lack of memory into a `UserError`; the folder keeps the state saved last."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise UserError(
            f"not enough GPU memory; use --device cpu, a smaller batch or a smaller network. "
            f"{path} keeps the state saved last"
        ) from None
    except MemoryError:
        raise UserError(f"not enough memory; {path} keeps the state saved last") from None
