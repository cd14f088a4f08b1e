"""Convert the pixels of image files to the number of channels of a model."""

from __future__ import annotations

from torch import Tensor

from itl.apps.model.folder import Model
from itl.errors import UserError


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
