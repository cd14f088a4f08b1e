"""What a learner tells while it learns, and how its seconds are counted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from itl.engine.stage import Stage
    from itl.learner import Learner
    from itl.streams import Task


class Callback:
    """Told of everything that happens; does nothing by itself. Subclass what you need."""

    def stage_begins(self, learner: Learner, stage: Stage) -> None:
        """A stage starts, or goes on where it was interrupted."""

    def round_ends(self, learner: Learner, stage: Stage, epoch: int, loss: float) -> None:
        """A round of epochs is done: `epoch` of the stage's are complete, `loss` is the round's mean."""

    def stage_ends(self, learner: Learner, stage: Stage) -> None:
        """A stage is complete; `learner.logits` still speaks for its model."""

    def memory_updated(self, learner: Learner, task: Task) -> None:
        """The specialist is trained and the memory has taken its samples; the half-pipe is next."""

    def task_ends(self, learner: Learner) -> None:
        """The task is learned: the network is the expert f_t."""

    def recorded(self, line: dict[str, Any]) -> None:
        """A run's `Recorder` has evaluated: its line of metrics.jsonl. A resumed run first repeats its own."""


class CallbackList(Callback):
    """Several observers, told one after another."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self.callbacks = list(callbacks)

    def stage_begins(self, learner: Learner, stage: Stage) -> None:
        """Tell everyone."""
        for one in self.callbacks:
            one.stage_begins(learner, stage)

    def round_ends(self, learner: Learner, stage: Stage, epoch: int, loss: float) -> None:
        """Tell everyone."""
        for one in self.callbacks:
            one.round_ends(learner, stage, epoch, loss)

    def stage_ends(self, learner: Learner, stage: Stage) -> None:
        """Tell everyone."""
        for one in self.callbacks:
            one.stage_ends(learner, stage)

    def memory_updated(self, learner: Learner, task: Task) -> None:
        """Tell everyone."""
        for one in self.callbacks:
            one.memory_updated(learner, task)

    def task_ends(self, learner: Learner) -> None:
        """Tell everyone."""
        for one in self.callbacks:
            one.task_ends(learner)

    def recorded(self, line: dict[str, Any]) -> None:
        """Tell everyone."""
        for one in self.callbacks:
            one.recorded(line)
