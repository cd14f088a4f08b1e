"""The memory: a buffer of raw images of fixed size, and the policies that choose which images it keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from itl.lazy import lazy_names

if TYPE_CHECKING:
    from itl.memory.buffer import Memory
    from itl.memory.candidates import Candidates, PolicyOptions
    from itl.memory.model_outputs import FeaturesAndLogits, ModelOutputs
    from itl.memory.online_selection import OfferedBatch, OnlineSelector, ReplayedBatch
    from itl.memory.policies.base import MemoryPolicy
    from itl.memory.registry import get_policy, policy_names, policy_sets, policy_summaries
    from itl.memory.slots import Slots

__all__ = [
    "Candidates",
    "FeaturesAndLogits",
    "Memory",
    "MemoryPolicy",
    "ModelOutputs",
    "OfferedBatch",
    "OnlineSelector",
    "PolicyOptions",
    "ReplayedBatch",
    "Slots",
    "get_policy",
    "policy_names",
    "policy_sets",
    "policy_summaries",
]

# Imported on first use, so that the names of the policies can be read without importing torch.
__getattr__ = lazy_names(
    __name__,
    {
        "buffer": ["Memory"],
        "candidates": ["Candidates", "PolicyOptions"],
        "model_outputs": ["FeaturesAndLogits", "ModelOutputs"],
        "online_selection": ["OfferedBatch", "OnlineSelector", "ReplayedBatch"],
        "policies.base": ["MemoryPolicy"],
        "registry": ["get_policy", "policy_names", "policy_sets", "policy_summaries"],
        "slots": ["Slots"],
    },
)
