"""Run records on disk, published numbers, and the tables that compare them."""

from itl.results.environment import environment
from itl.results.packed_runs import PackedRun, pack, unpack
from itl.results.record import RECORD_FORMAT, RunFolder, scores_from_predictions, stage_scores
from itl.results.runs import Run, find_runs, read_run
from itl.results.validation import read_config

__all__ = [
    "RECORD_FORMAT",
    "PackedRun",
    "Run",
    "RunFolder",
    "environment",
    "find_runs",
    "pack",
    "read_config",
    "read_run",
    "scores_from_predictions",
    "stage_scores",
    "unpack",
]
