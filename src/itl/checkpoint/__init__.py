"""Saved state of learners: model folders with generations, locks, and how often to save.

`store` reads and writes model folders, `lock` keeps two processes from changing one, `LearnerState` is the content
for a learner, and `CheckpointThrottle` decides when to save an unfinished stage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from itl.lazy import lazy_names

if TYPE_CHECKING:
    from itl.checkpoint.learner_state import LearnerState
    from itl.checkpoint.store import TemporarilyUnreadable, UnsupportedVersion
    from itl.checkpoint.throttle import CheckpointThrottle

__all__ = ["CheckpointThrottle", "LearnerState", "TemporarilyUnreadable", "UnsupportedVersion"]

# Imported on first use: the lock and the throttle do not need torch.
__getattr__ = lazy_names(
    __name__,
    {
        "learner_state": ["LearnerState"],
        "store": ["TemporarilyUnreadable", "UnsupportedVersion"],
        "throttle": ["CheckpointThrottle"],
    },
)
