"""How long a run will still take, from the steps it has done and those still to come."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from itl.settings import Settings

GENERALIST = "generalist"  # tangent, full or linear: a run has one of them


@dataclass(frozen=True)
class Leg:
    """One stage of one task (from 1): how many steps, and how many images each of them takes."""

    task: int
    stage: str
    steps: int
    images: int


def legs(settings: Settings, sizes: Sequence[int], buffer: int) -> list[Leg]:
    """All stages of a run over tasks of `sizes` training images, with a memory of `buffer`."""
    s, g, p = settings.specialist, settings.tangent, settings.projection
    out, seen = [], 0
    for task, size in enumerate(sizes, 1):
        replayed = s.replay * s.draws if settings.memory.policy != "none" else 0
        first = settings.memory.policy == "stratified" and task == 1  # its memory is empty until the task's end
        seen += size
        stored = min(buffer, seen)
        limit = -(-size // s.batch) * s.epochs
        out.append(Leg(task, "specialist", min(limit, s.steps or limit), s.batch + (0 if first else replayed)))
        if settings.generalist != "none":
            out.append(Leg(task, GENERALIST, _steps(stored, g.batch, g.epochs, g.steps), min(g.batch, stored)))
        if settings.projects:
            over = stored if p.over == "memory" else size
            out.append(Leg(task, "projection", _steps(over, p.batch, p.epochs, p.steps), min(p.batch, over)))
    return out


def _steps(size: int, batch: int, epochs: int, steps: int | None) -> int:
    return steps if steps is not None else -(-size // batch) * epochs


class Outlook:
    """The time left. A stage's speed is what it was so far; one not met yet is taken to be as fast as the others."""

    def __init__(self, legs: Sequence[Leg]) -> None:
        self.legs = list(legs)
        self.spent: dict[str, float] = defaultdict(float)  # seconds, by stage
        self.done: dict[str, float] = defaultdict(float)  # images, by stage
        self.at = 0  # the present leg
        self.steps = 0  # of it, done

    def begins(self, task: int, stage: str, steps: int) -> None:
        """A stage begins (or goes on) after `steps` of its own."""
        stage = stage if stage in ("specialist", "projection") else GENERALIST
        places = [i for i, leg in enumerate(self.legs) if (leg.task, leg.stage) == (task, stage)]
        self.at, self.steps = (places[0] if places else len(self.legs)), steps

    def advances(self, steps: int, seconds: float) -> None:
        """The present stage has done `steps` of its own, `seconds` after it was last told of."""
        if self.at < len(self.legs):
            leg = self.legs[self.at]
            self.spent[leg.stage] += seconds
            self.done[leg.stage] += (steps - self.steps) * leg.images
        self.steps = steps

    def left(self) -> float | None:
        """Seconds still to go; None while nothing is known."""
        done = sum(self.done.values())
        if not done:
            return None
        overall = sum(self.spent.values()) / done
        total = 0.0
        for place in range(self.at, len(self.legs)):
            leg = self.legs[place]
            pace = self.spent[leg.stage] / self.done[leg.stage] if self.done[leg.stage] else overall
            steps = leg.steps - (self.steps if place == self.at else 0)
            total += pace * max(0, steps) * leg.images
        return total
