"""Callbacks of a lesson: stop it on request, and notice that the time for it ended its training."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from itl.apps.model import Model
from itl.callbacks.base import Callback

if TYPE_CHECKING:
    from itl.engine.stage import Stage
    from itl.learner import Learner


class StopCallback(Callback):
    """Saves the model and raises `KeyboardInterrupt` at the end of the round in which `stop` returns True."""

    def __init__(self, model: Model, stop: Callable[[], bool]) -> None:
        self.model, self.stop = model, stop

    def on_round_end(self, learner: Learner, stage: Stage, epoch: int, loss: float) -> None:
        """Save and stop, if a stop was requested."""
        if self.stop():
            self.model.save()
            raise KeyboardInterrupt


class TimeLimitCallback(Callback):
    """Notices whether the training on the new images ended because of the maximum number of steps.

    Attributes:
        reached: Whether it did.
    """

    reached = False

    def on_stage_end(self, learner: Learner, stage: Stage) -> None:
        """Look at the specialist's stage."""
        if stage.name == "specialist":
            limit, stopped = learner.settings.specialist.steps, stage.summary.get("stopped", False)
            self.reached = stage.planner.total_steps == limit and not stopped
