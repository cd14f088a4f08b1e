"""Decides how often an unfinished stage is saved."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from itl.errors import UserError

SAVE_INTERVAL_SECONDS = 30.0  # unless the environment variable ITL_SAVE_EVERY gives another interval
MAX_SAVE_SHARE = 0.025  # of the running time


class CheckpointThrottle:
    """Decides when to save an unfinished stage: at an interval, and for a small share of the running time at most.

    After a crash the lost steps are repeated with bit-identical results, so a slow disk makes saves rarer instead of
    slowing down training.

    Args:
        interval: Seconds between two saves; 0 saves after every round. None uses the environment variable
            ITL_SAVE_EVERY, or 30.

    Raises:
        UserError: ITL_SAVE_EVERY is not a number.
    """

    def __init__(self, interval: float | None = None) -> None:
        self.interval = _default_interval() if interval is None else interval
        self.next_save = time.monotonic() + self.interval

    def due(self) -> bool:
        """Whether it is time to save."""
        return time.monotonic() >= self.next_save

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Measure how long the save inside the context takes, to schedule the next one."""
        start = time.monotonic()
        yield
        end = time.monotonic()
        self.next_save = end + (max(self.interval, (end - start) / MAX_SAVE_SHARE) if self.interval else 0)


def _default_interval() -> float:
    text = os.environ.get("ITL_SAVE_EVERY", "")
    try:
        return max(0.0, float(text or SAVE_INTERVAL_SECONDS))
    except ValueError:
        raise UserError(f"ITL_SAVE_EVERY must be a number of seconds, not '{text}'") from None
