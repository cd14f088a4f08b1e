"""A run's record on disk, and the published numbers it is held against."""

from itl.results.record import FORMAT, RunFolder, environment, stage_scores
from itl.results.runs import Run, find_runs, read_run
from itl.results.validation import read_config

__all__ = ["FORMAT", "Run", "RunFolder", "environment", "find_runs", "read_config", "read_run", "stage_scores"]
