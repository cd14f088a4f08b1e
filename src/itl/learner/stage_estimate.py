"""A task's stages counted before they are run: for telling how long they will take."""

from __future__ import annotations

from dataclasses import dataclass

from itl.engine.batches import num_batches
from itl.settings import Settings

GENERALIST = "generalist"  # tangent, full or linear: a run has one of them


@dataclass(frozen=True)
class StageEstimate:
    """One stage of one task (from 1): how many steps, and how many images each of them takes."""

    task: int
    stage: str
    steps: int
    images: int


def estimate_stages(settings: Settings, task: int, count: int, before: int, stored: int) -> list[StageEstimate]:
    """The stages of a task of `count` images: `before` are in memory at its start, `stored` in the end.

    But for the stratified one, a memory is filled, and replayed from, as the task goes.
    """
    s, g, p = settings.specialist, settings.tangent, settings.projection
    replays = settings.memory.policy != "none" and (before > 0 or settings.memory.policy != "stratified")
    steps = num_batches(count, s.batch) * s.epochs
    images = min(s.batch, count) + (s.replay * s.draws if replays else 0)
    out = [StageEstimate(task, "specialist", min(steps, s.steps or steps), images)]
    if settings.generalist != "none":
        out.append(StageEstimate(task, GENERALIST, _steps(stored, g.batch, g.epochs, g.steps), min(g.batch, stored)))
    if settings.projects:
        over = stored if p.over == "memory" else count
        out.append(StageEstimate(task, "projection", _steps(over, p.batch, p.epochs, p.steps), min(p.batch, over)))
    return out


def _steps(images: int, batch: int, epochs: int, steps: int | None) -> int:
    return steps if steps is not None else num_batches(images, batch) * epochs
