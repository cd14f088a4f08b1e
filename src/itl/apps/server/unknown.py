"""Decide whether a picture belongs to none of the classes."""

from __future__ import annotations

UNKNOWN_THRESHOLD = 0.6
UNKNOWN_RULE = (
    f"A picture is shown as unknown if no class reaches {UNKNOWN_THRESHOLD:.0%}. "
    "This threshold is fixed; it is not calibrated for this model."
)


def is_unknown(confidence: float) -> bool:
    """Return whether a picture whose most probable class has this probability is shown as unknown."""
    return confidence < UNKNOWN_THRESHOLD
