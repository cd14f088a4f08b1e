"""A class-balanced ring buffer (Chaudhry et al., 2019)."""

from __future__ import annotations

from collections import deque

import numpy as np

from itl.memory.policies.base import MemoryPolicy
from itl.memory.slots import Slots


class Ring(MemoryPolicy):
    """Every class holds the last samples seen of it."""

    def plan_writes(self, slots: Slots, labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Fill free slots first, then overwrite the oldest samples.

        A class that holds its share (the memory divided by the classes seen) overwrites its own oldest sample; a class
        that holds less overwrites the oldest sample of the class that holds most.
        """
        oldest_first = np.lexsort((np.arange(slots.count), slots.written[: slots.count]))
        queues: dict[int, deque[int]] = {}
        for slot in oldest_first:
            queues.setdefault(int(slots.label[slot]), deque()).append(int(slot))
        free = deque(range(slots.count, slots.size))
        targets = np.empty(len(labels), np.int64)
        for k, label in enumerate(labels.tolist()):
            queue = queues.setdefault(label, deque())
            if free:
                slot = free.popleft()
            elif queue and len(queue) >= slots.size // len(queues):
                slot = queue.popleft()
            else:
                slot = max(queues.values(), key=len).popleft()
            queue.append(slot)
            targets[k] = slot
        return targets
