"""Specialists by name: the methods that train on a task with replay, one file each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from itl.lazy import lazy_names
from itl.method_catalog import register

if TYPE_CHECKING:
    from itl.specialists.base import Batch, Options, Phase, Specialist, TaskContext, concat
    from itl.specialists.registry import build, find, is_capturable, names, resolve_options, with_option_defaults

__all__ = [
    "Batch",
    "Options",
    "Phase",
    "Specialist",
    "TaskContext",
    "build",
    "concat",
    "find",
    "is_capturable",
    "names",
    "register",
    "resolve_options",
    "with_option_defaults",
]

# Imported on first use, because `base` imports torch.
__getattr__ = lazy_names(
    __name__,
    {
        "base": ["Batch", "Options", "Phase", "Specialist", "TaskContext", "concat"],
        "registry": ["build", "find", "is_capturable", "names", "resolve_options", "with_option_defaults"],
    },
)
