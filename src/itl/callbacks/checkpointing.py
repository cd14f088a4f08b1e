"""`CheckpointCallback`: saves a learner during training."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from itl.callbacks.base import Callback
from itl.checkpoint.throttle import CheckpointThrottle

if TYPE_CHECKING:
    from itl.engine.stage import Stage
    from itl.learner import Learner


class RunStopped(Exception):
    """A run was asked to stop and has saved its state. It can be resumed."""


class CheckpointCallback(Callback):
    """Saves the learner between rounds, as often as a `CheckpointThrottle` allows, and at the end of each task.

    Args:
        save: Function that saves the learner that it is called with.
        interval: Seconds between two saves within a task; None for the default.
        at_task_end: Whether to save at the end of each task too.
        stop: Asked after every round whether to stop. If so, the learner is saved and `RunStopped` is raised.
    """

    def __init__(
        self,
        save: Callable[[Learner], None],
        interval: float | None = None,
        at_task_end: bool = True,
        stop: Callable[[], bool] | None = None,
    ) -> None:
        self.save, self.at_task_end, self.stop = save, at_task_end, stop
        self.throttle = CheckpointThrottle(interval)

    def on_round_end(self, learner: Learner, stage: Stage, epoch: int, loss: float) -> None:
        """Save if the throttle allows it, or if the run is to stop."""
        stopped = self.stop is not None and self.stop()
        if stopped or self.throttle.due():
            self._save(learner)
        if stopped:
            raise RunStopped

    def on_task_end(self, learner: Learner) -> None:
        """Save the finished task."""
        if self.at_task_end:
            self._save(learner)

    def _save(self, learner: Learner) -> None:
        with learner.timer.section("saving"), self.throttle.saving():
            self.save(learner)
