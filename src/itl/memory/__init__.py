"""The memory: a buffer of raw images of fixed size, and the policies that choose which images it keeps."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from itl.memory.buffer import Memory
    from itl.memory.candidates import Candidates, PolicyOptions
    from itl.memory.model_outputs import FeaturesAndLogits, ModelOutputs
    from itl.memory.online_selection import OfferedBatch, OnlineSelector, ReplayedBatch
    from itl.memory.policies.base import MemoryPolicy
    from itl.memory.registry import get_policy, policy_names, policy_summaries
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
    "policy_summaries",
]

# Imported on first use, so that the names of the policies can be read without importing torch.
_MODULES = {
    "Candidates": "candidates",
    "FeaturesAndLogits": "model_outputs",
    "Memory": "buffer",
    "MemoryPolicy": "policies.base",
    "ModelOutputs": "model_outputs",
    "OfferedBatch": "online_selection",
    "OnlineSelector": "online_selection",
    "PolicyOptions": "candidates",
    "ReplayedBatch": "online_selection",
    "Slots": "slots",
    "get_policy": "registry",
    "policy_names": "registry",
    "policy_summaries": "registry",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'itl.memory' has no attribute '{name}'")
    return getattr(import_module(f"itl.memory.{_MODULES[name]}"), name)
