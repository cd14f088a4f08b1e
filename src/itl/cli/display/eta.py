"""How long a run will still take, from the steps it has done and those still to come."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from itl.learner.stage_estimate import GENERALIST, StageEstimate, estimate_stages

if TYPE_CHECKING:
    from itl.settings import Settings


def legs(settings: Settings, sizes: Sequence[int], buffer: int) -> list[StageEstimate]:
    """All stages of a run over tasks of `sizes` training images, with a memory of `buffer`."""
    out, seen = [], 0
    for task, size in enumerate(sizes, 1):
        before, seen = seen, seen + size
        out += estimate_stages(settings, task, size, min(buffer, before), min(buffer, seen))
    return out


class Outlook:
    """The time left. A stage's speed is what it was so far; one not met yet is taken to be as fast as the others."""

    def __init__(self, legs: Sequence[StageEstimate]) -> None:
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
