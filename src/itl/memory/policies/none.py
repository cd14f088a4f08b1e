"""No memory."""

from __future__ import annotations

from itl.memory.policies.base import MemoryPolicy


class NoMemory(MemoryPolicy):
    """Stores nothing; for methods without replay, such as SGD."""
