"""Saved state of learners: model folders with generations, locks, and how often to save.

`store` reads and writes model folders, `lock` keeps two processes from changing one, `LearnerState` is the content
for a learner, and `CheckpointThrottle` decides when to save an unfinished stage.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from itl.checkpoint.learner_state import LearnerState
    from itl.checkpoint.store import TemporarilyUnreadable, UnsupportedVersion
    from itl.checkpoint.throttle import CheckpointThrottle

__all__ = ["CheckpointThrottle", "LearnerState", "TemporarilyUnreadable", "UnsupportedVersion"]

# Imported on first use: the lock and the throttle do not need torch.
_MODULES = {
    "CheckpointThrottle": "throttle",
    "LearnerState": "learner_state",
    "TemporarilyUnreadable": "store",
    "UnsupportedVersion": "store",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
