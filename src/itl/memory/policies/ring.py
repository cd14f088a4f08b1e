"""A class-balanced ring: every class holds the last samples seen of it (Chaudhry et al., 2019)."""

from __future__ import annotations

from collections import deque

import numpy as np

from itl.memory.slots import Slots


def ring(slots: Slots, labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Where samples of classes `labels` `[n]`, offered one after another, are written: slot `[n]`.

    Free slots first. Then a class that holds its share (the memory divided by the classes seen) overwrites its own
    oldest sample, and one that holds less the oldest of the class that holds most.
    """
    age = np.lexsort((np.arange(slots.count), slots.written[: slots.count]))
    queues: dict[int, deque[int]] = {}
    for slot in age:
        queues.setdefault(int(slots.label[slot]), deque()).append(int(slot))
    free = deque(range(slots.count, slots.size))
    targets = np.empty(len(labels), np.int64)
    for k, label in enumerate(labels.tolist()):
        own = queues.setdefault(label, deque())
        if free:
            slot = free.popleft()
        elif own and len(own) >= slots.size // len(queues):
            slot = own.popleft()
        else:
            slot = max(queues.values(), key=len).popleft()
        own.append(slot)
        targets[k] = slot
    return targets
