"""A callback that stops a lesson on request."""

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
