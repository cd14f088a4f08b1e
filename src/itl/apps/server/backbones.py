"""The networks that the page offers for a new model."""

from __future__ import annotations

from typing import Any

SCRATCH = "scratch"
PREFERRED = "efficientnet-lite0"


def backbone_choices(new_model: dict[str, Any]) -> list[dict[str, str]]:
    """Return the networks for a new model, the default first; none if the command line has chosen one."""
    return []


def new_model_options(backbone: Any, new_model: dict[str, Any]) -> dict[str, Any]:
    """Return arguments of `TeachingOptions` for a new model with this network."""
    return {}
