"""Streams of tasks: from benchmark datasets, from arrays, or from any torch Dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING

from itl.lazy import lazy_names

if TYPE_CHECKING:
    from itl.streams.arrays import from_arrays, from_dataset
    from itl.streams.base import Dataset, DatasetSource, Images, Progress, Stream, Task, Traits
    from itl.streams.loading import check, load
    from itl.streams.registry import describe, names
    from itl.streams.split import build

__all__ = [
    "Dataset",
    "DatasetSource",
    "Images",
    "Progress",
    "Stream",
    "Task",
    "Traits",
    "build",
    "check",
    "describe",
    "from_arrays",
    "from_dataset",
    "load",
    "names",
]

# Imported on first use, so that image files can be read without importing torch.
__getattr__ = lazy_names(
    __name__,
    {
        "arrays": ["from_arrays", "from_dataset"],
        "base": ["Dataset", "DatasetSource", "Images", "Progress", "Stream", "Task", "Traits"],
        "loading": ["check", "load"],
        "registry": ["describe", "names"],
        "split": ["build"],
    },
)
