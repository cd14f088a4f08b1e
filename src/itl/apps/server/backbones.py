"""The networks that the page offers for a new model."""

from __future__ import annotations

from typing import Any

from itl import nets
from itl.apps.teaching.options import BACKBONE_METHOD, DEFAULT_METHOD
from itl.errors import unknown

AUTOMATIC, SCRATCH = "automatic", "scratch"
LABELS = {AUTOMATIC: "Automatic: pre-trained for photographs", SCRATCH: "Small network, trained from scratch"}


def backbone_choices(new_model: dict[str, Any]) -> list[dict[str, str]]:
    """Return the networks for a new model, the default first.

    There is no choice if the command line has made one, or if no pre-trained weights are installed.

    Args:
        new_model: Arguments of `TeachingOptions` from the command line.
    """
    if new_model.get("size") or any(name.startswith("net.") for name in new_model.get("settings", {})):
        return []
    installed = [name for name in nets.names() if nets.weights_available(name)]
    if not installed:
        return []
    return [
        {"value": AUTOMATIC, "label": LABELS[AUTOMATIC]},
        *({"value": name, "label": f"{name}, pre-trained"} for name in installed),
        {"value": SCRATCH, "label": LABELS[SCRATCH]},
    ]


def new_model_options(choice: Any, new_model: dict[str, Any]) -> dict[str, Any]:
    """Return further arguments of `TeachingOptions` for a new model.

    Args:
        choice: One of the values of `backbone_choices`, or None.
        new_model: Arguments of `TeachingOptions` from the command line.

    Raises:
        UserError: If there is no such choice.
    """
    known = [one["value"] for one in backbone_choices(new_model)]
    if choice in (None, "", AUTOMATIC):
        return {}
    if choice not in known:
        raise unknown("network", str(choice)[:60], known)
    return {"method": DEFAULT_METHOD} if choice == SCRATCH else {"backbone": choice, "method": BACKBONE_METHOD}
