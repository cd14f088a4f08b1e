"""The memory: a fixed number of raw images, with what is known of each, and the policy that chooses them."""

from itl.memory.buffer import Memory
from itl.memory.policies import POLICIES, Policy
from itl.memory.slots import Slots

__all__ = ["POLICIES", "Memory", "Policy", "Slots"]
