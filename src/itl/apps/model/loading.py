"""Load the learner of a model folder."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import Any

from torch import nn

from itl.apps.model.folder import Model
from itl.callbacks.base import Callback
from itl.learner import Learner


def load(
    path: str | os.PathLike[str],
    *,
    device: str = "auto",
    settings: Mapping[str, Any] | None = None,
    callback: Callback | None = None,
    net: nn.Module | None = None,
) -> Learner:
    """Load a learner from a folder that was written by `Learner.save` or by a `Model`.

    Args:
        path: The folder.
        device: `auto`, `cpu` or `cuda`.
        settings: Settings that override the saved ones.
        callback: Receives the learner's events.
        net: The network's structure, if the learner was created with your own network; the weights are in the folder.

    Returns:
        The learner, ready to predict and to continue learning.

    Raises:
        UserError: If the folder is not a model, is damaged, or has another format version.
    """
    model = Model.open(path, device=device, settings=settings, net=net)
    if model.damaged_images:
        warnings.warn(f"{path}: the memory has lost {len(model.damaged_images)} damaged images", stacklevel=2)
    learner = model.learner
    learner.callback = callback or learner.callback
    return learner
