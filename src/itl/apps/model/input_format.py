"""Read image files in a model's input format: its image size, interpolation and number of channels."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from itl.apps.images import SkippedPath, read_images
from itl.apps.model.folder import Model
from itl.errors import UserError


class ModelImages(NamedTuple):
    """Images for a model.

    Attributes:
        pixels: The readable images, uint8 `[n, channels, size, size]`.
        indices: The index into the paths of each of them.
        skipped: The other files, with reasons.
    """

    pixels: Tensor
    indices: list[int]
    skipped: list[SkippedPath]


def read_model_images(model: Model, paths: Sequence[str | os.PathLike[str]]) -> ModelImages:
    """Read image files as a model takes them.

    Raises:
        UserError: If image files do not have the model's number of channels.
    """
    decoded = read_images(paths, model.image["size"], interpolation=interpolation(model))
    pixels = match_channels(torch.from_numpy(decoded.pixels), model)
    return ModelImages(pixels, decoded.indices.tolist(), decoded.skipped)


def interpolation(model: Model) -> str:
    """How pictures are resized for a model: as its pre-trained backbone expects, or "bilinear"."""
    backbone = model.learner.backbone
    return "bilinear" if backbone is None else backbone.preprocessing.interpolation


def match_channels(pixels: Tensor, model: Model) -> Tensor:
    """Convert RGB pixels `[n, 3, h, w]` to the model's number of channels; gray uses the ITU-R 601 weights."""
    if model.image["channels"] == 3:
        return pixels
    if model.image["channels"] != 1:
        raise UserError(
            f"{model.path} expects images with {model.image['channels']} channels, but image files have 1 or 3."
        )
    red, green, blue = (pixels[:, k].int() for k in range(3))
    return ((red * 19595 + green * 38470 + blue * 7471 + (1 << 15)) >> 16).to(pixels.dtype).unsqueeze(1)
