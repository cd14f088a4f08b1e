"""The memory: a fixed number of raw images, with what is known of each, and the policy that chooses them."""

from itl.memory.buffer import Memory
from itl.memory.candidates import Candidates, PolicyOptions
from itl.memory.model_outputs import ModelOutputs, Seen
from itl.memory.registry import POLICIES, Policy
from itl.memory.slots import Slots

__all__ = ["POLICIES", "Candidates", "Memory", "ModelOutputs", "Policy", "PolicyOptions", "Seen", "Slots"]
