"""Numbers of steps of a task's stages before they are run, to estimate the remaining time."""

from __future__ import annotations

from dataclasses import dataclass

from itl import specialists
from itl.engine.batches import num_batches
from itl.settings import Settings

GENERALIST = "generalist"  # stands for "tangent", "full" or "linear", of which a run has one


@dataclass(frozen=True)
class StageEstimate:
    """Size of one stage of one task.

    Attributes:
        task: Number of the task, from 1.
        stage: Name of the stage.
        steps: Number of optimizer steps.
        images: Number of images per step.
    """

    task: int
    stage: str
    steps: int
    images: int


def estimate_stages(settings: Settings, task: int, count: int, before: int, stored: int) -> list[StageEstimate]:
    """Estimate the stages of a task.

    Args:
        settings: Settings of the run.
        task: Number of the task, from 1.
        count: Number of training images of the task.
        before: Number of images in the memory when the task starts.
        stored: Number of images in the memory when the task ends.
    """
    s, g, p = settings.specialist, settings.tangent, settings.projection
    # Every memory except the stratified one is filled, and replayed from, during the task.
    replays = settings.memory.policy != "none" and (before > 0 or settings.memory.policy != "stratified")
    in_epoch = images_per_epoch(settings, count, before)
    replays = replays and in_epoch == count
    steps = num_batches(in_epoch, s.batch) * s.epochs
    images = min(s.batch, in_epoch) + (s.replay * s.draws if replays else 0)
    stages = [StageEstimate(task, "specialist", min(steps, s.steps or steps), images)]
    if settings.generalist != "none":
        epochs = (_steps(stored, g.batch, g.epochs, g.steps), min(g.batch, stored))
        solve = (g.iterations, g.views * stored)
        stages.append(StageEstimate(task, GENERALIST, *(epochs if g.solver == "sgd" else solve)))
    if settings.projects:
        size = stored if p.over == "memory" else count
        is_exact = settings.generalist == "tangent" and g.layers == 1
        steps = 1 if is_exact else _steps(size, p.batch, p.epochs, p.steps)
        stages.append(StageEstimate(task, "projection", steps, min(p.batch, size)))
    return stages


def images_per_epoch(settings: Settings, count: int, before: int) -> int:
    """Number of samples in an epoch of the specialist, for `count` images of the task and `before` in the memory."""
    return count + (before if specialists.find(settings.specialist.name).data == "both" else 0)


def _steps(images: int, batch: int, epochs: int, steps: int | None) -> int:
    return steps if steps is not None else num_batches(images, batch) * epochs
