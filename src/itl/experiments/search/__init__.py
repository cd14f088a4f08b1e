"""Hyperparameter search and sweeps on one machine or a Ray cluster. Needs the extra `search`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from itl.lazy import lazy_names

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

# Some modules need optional packages. The function `sweep` shares its name with its module.
__getattr__ = lazy_names(
    __name__,
    {
        "grid": ["Grid", "build_grid", "load_grid", "packaged_grids"],
        "local_backend": ["LocalBackend"],
        "progress": ["JobProgress", "ProgressTracker"],
        "ray_backend": ["RayBackend"],
        "space": ["Dimension", "Space", "parse_space"],
        "study": ["SearchPlan", "best_config", "best_trial", "final_configs", "open_search"],
        "sweep": ["Backend", "load_progress"],
        "sweep_jobs": ["SweepJobs"],
        "trials": ["TrialJobs"],
    },
)
