"""Measures the time that a program spends in its sections."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class SectionTimer:
    """Seconds by section. A nested section pauses the enclosing one.

    Attributes:
        seconds: Seconds spent in each section so far.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._open: list[str] = []
        self._since = 0.0

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        """Count the time inside the context toward `name`."""
        self._count()
        self._open.append(name)
        try:
            yield
        finally:
            self._count()
            self._open.pop()

    def _count(self) -> None:
        time_now = time.perf_counter()
        if self._open:
            self.seconds[self._open[-1]] += time_now - self._since
        self._since = time_now
