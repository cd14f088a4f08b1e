"""A time limit for the runs of a process: each run stops at a checkpoint early enough to end in time."""

from __future__ import annotations

import time
from collections.abc import Callable

RESERVE = 1.5  # a run stops if this many times the longest round so far no longer fits


def deadline_in(minutes: float | None) -> float | None:
    """Unix time in so many minutes; None for no limit."""
    return None if minutes is None else time.time() + 60 * minutes


class TimeLimit:
    """Says when runs must stop so that all of them are saved before a deadline.

    A run can be saved between two rounds only, so the limit is reached as soon as one more round may take too long.
    What happens between two rounds (evaluation, saving, loading a stream) counts as part of the round.

    Args:
        deadline: Unix time; None for no limit.
        clock: Returns the current Unix time.
    """

    def __init__(self, deadline: float | None, clock: Callable[[], float] = time.time) -> None:
        self.deadline, self.clock = deadline, clock
        self.longest_round = 0.0  # seconds, of all runs of this process

    def reached(self) -> bool:
        """Whether no further round may be started."""
        return self.deadline is not None and self.clock() + RESERVE * self.longest_round >= self.deadline

    def start_run(self) -> Callable[[], bool]:
        """Start a run; the returned function is to be called after each of its rounds and says whether to stop it."""
        last = self.clock()

        def after_round() -> bool:
            nonlocal last
            now = self.clock()
            self.longest_round, last = max(self.longest_round, now - last), now
            return self.reached()

        return after_round
