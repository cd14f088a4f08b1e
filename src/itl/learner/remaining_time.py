"""Estimate the remaining time of a run from the training steps done and still to do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from itl.learner.stage_estimate import GENERALIST, StageEstimate, estimate_stages

if TYPE_CHECKING:
    from itl.learner.learner import Learner
    from itl.settings import Settings


def estimate_run(settings: Settings, task_sizes: Sequence[int], buffer: int) -> list[StageEstimate]:
    """All stages of a run over tasks with these numbers of training images."""
    stages, seen = [], 0
    for task, size in enumerate(task_sizes, 1):
        before, seen = seen, seen + size
        stages += estimate_stages(settings, task, size, min(buffer, before), min(buffer, seen))
    return stages


def estimate_task(learner: Learner, images: int) -> list[StageEstimate]:
    """The stages of a learner's current task of `images` images, if earlier tasks have filled the memory."""
    size, task = learner.memory.size, len(learner.tasks)
    stages = estimate_run(learner.settings, [*[size] * (task - 1), images], size)
    return [stage for stage in stages if stage.task == task]


class EtaEstimator:
    """Estimates the remaining time from the seconds per image of each stage so far.

    A stage that has not run yet is assumed to be as fast as the average of the others.
    """

    def __init__(self, stages: Sequence[StageEstimate]) -> None:
        self.stages = list(stages)
        self.seconds: dict[str, float] = defaultdict(float)  # spent so far, by stage name
        self.images: dict[str, float] = defaultdict(float)  # processed so far, by stage name
        self.current = 0  # index into `stages`
        self.steps = 0  # done in the current stage

    def start_stage(self, task: int, stage: str, steps: int) -> None:
        """A stage starts, or resumes after `steps` of its steps."""
        name = stage if stage in ("specialist", "projection") else GENERALIST
        matches = [index for index, one in enumerate(self.stages) if (one.task, one.stage) == (task, name)]
        self.current, self.steps = (matches[0] if matches else len(self.stages)), steps

    def update(self, steps: int, seconds: float) -> None:
        """The current stage has done `steps` in total; `seconds` have passed since the last update."""
        if self.current < len(self.stages):
            stage = self.stages[self.current]
            self.seconds[stage.stage] += seconds
            self.images[stage.stage] += (steps - self.steps) * stage.images
        self.steps = steps

    def remaining(self) -> float | None:
        """Estimated seconds until the end; None before the first update."""
        images = sum(self.images.values())
        if not images:
            return None
        average = sum(self.seconds.values()) / images
        total = 0.0
        for index in range(self.current, len(self.stages)):
            stage = self.stages[index]
            done = self.images[stage.stage]
            seconds_per_image = self.seconds[stage.stage] / done if done else average
            steps = stage.steps - (self.steps if index == self.current else 0)
            total += seconds_per_image * max(0, steps) * stage.images
        return total
