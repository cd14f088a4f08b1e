"""Hyperparameter search and sweeps on one machine or a Ray cluster. Needs the extra `search`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from itl.experiments.search.grid import Grid, build_grid, load_grid, packaged_grids
    from itl.experiments.search.local_backend import LocalBackend
    from itl.experiments.search.progress import JobProgress, ProgressTracker
    from itl.experiments.search.ray_backend import RayBackend
    from itl.experiments.search.space import Dimension, Space, parse_space
    from itl.experiments.search.study import SearchPlan, best_config, best_trial, final_configs, open_search
    from itl.experiments.search.sweep import Backend, load_progress
    from itl.experiments.search.sweep_jobs import SweepJobs
    from itl.experiments.search.trials import TrialJobs

# Modules are imported on first use: some need optional packages. The function `sweep` shares its name with its module.
_MODULES = {
    "Backend": "sweep",
    "Dimension": "space",
    "Grid": "grid",
    "JobProgress": "progress",
    "LocalBackend": "local_backend",
    "ProgressTracker": "progress",
    "RayBackend": "ray_backend",
    "SearchPlan": "study",
    "Space": "space",
    "SweepJobs": "sweep_jobs",
    "TrialJobs": "trials",
    "best_config": "study",
    "best_trial": "study",
    "build_grid": "grid",
    "final_configs": "study",
    "load_grid": "grid",
    "load_progress": "sweep",
    "open_search": "study",
    "packaged_grids": "grid",
    "parse_space": "space",
}

__all__ = [
    "Backend",
    "Dimension",
    "Grid",
    "JobProgress",
    "LocalBackend",
    "ProgressTracker",
    "RayBackend",
    "SearchPlan",
    "Space",
    "SweepJobs",
    "TrialJobs",
    "best_config",
    "best_trial",
    "build_grid",
    "final_configs",
    "load_grid",
    "load_progress",
    "open_search",
    "packaged_grids",
    "parse_space",
]


def __getattr__(name: str) -> Any:
    """Import the module of a public name on first use."""
    if name not in _MODULES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
