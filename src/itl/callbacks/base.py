"""`Callback`: hooks that a learner calls during training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from itl.engine.stage import Stage
    from itl.learner import Learner
    from itl.streams import Task


class Callback:
    """Base class of callbacks. Every hook does nothing; override those you need."""

    def on_features(self, learner: Learner, done: int, total: int) -> None:
        """Called while the features of a task's images are computed by a frozen trunk.

        Args:
            learner: The learner.
            done: Number of images whose features are known.
            total: Number of images.
        """

    def on_stage_start(self, learner: Learner, stage: Stage) -> None:
        """Called when a stage starts, or resumes after an interruption.

        Args:
            learner: The learner.
            stage: The stage; `stage.name` is its name.
        """

    def on_round_end(self, learner: Learner, stage: Stage, epoch: int, loss: float) -> None:
        """Called after each round of epochs. The learner can be saved here.

        Args:
            learner: The learner.
            stage: The stage that is running.
            epoch: Number of completed epochs of the stage.
            loss: Mean loss of the round.
        """

    def on_stage_end(self, learner: Learner, stage: Stage) -> None:
        """Called when a stage is complete; `learner.logits` still uses the model of that stage.

        Args:
            learner: The learner.
            stage: The stage that has ended.
        """

    def on_memory_update(self, learner: Learner, task: Task) -> None:
        """Called after the specialist was trained and the memory was updated, before the half-pipe.

        Args:
            learner: The learner.
            task: The current task.
        """

    def on_task_end(self, learner: Learner) -> None:
        """Called when a task is complete: the network is the expert f_t.

        Args:
            learner: The learner.
        """

    def on_record(self, line: dict[str, Any]) -> None:
        """Called by the recorder of a run after each evaluation. A resumed run repeats its earlier lines first.

        Args:
            line: The line of metrics.jsonl.
        """


class CallbackList(Callback):
    """Calls several callbacks in order.

    Args:
        callbacks: The callbacks, in the order in which they are called.
    """

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self.callbacks = list(callbacks)


def _call_all(hook: str) -> Callable[..., None]:
    def call(self: CallbackList, *args: Any, **kwargs: Any) -> None:
        for callback in self.callbacks:
            getattr(callback, hook)(*args, **kwargs)

    call.__name__, call.__doc__ = hook, f"Call `{hook}` of every callback."
    return call


for _hook in [name for name in vars(Callback) if name.startswith("on_")]:
    setattr(CallbackList, _hook, _call_all(_hook))
