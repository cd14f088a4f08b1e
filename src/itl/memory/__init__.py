"""The memory: a fixed number of raw images, with what is known of each, and the policy that chooses them."""

from itl.memory.buffer import Memory
from itl.memory.slots import Slots

__all__ = ["POLICIES", "Memory", "Slots"]

# name: (one line, whether it writes on every batch)
POLICIES: dict[str, tuple[str, bool]] = {
    "stratified": ("stratified random sampling at the task's end; frozen while a task is trained (ITL)", False),
    "reservoir": ("reservoir sampling on every batch of every epoch (ER, DER, ITL-L)", True),
    "none": ("no memory at all (SGD)", False),
}
