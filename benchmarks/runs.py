"""Records of many runs: which exist, and doing those that do not."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from itl.errors import UserError
from itl.experiments.config import Config
from itl.experiments.search.jobs import JobEvent
from itl.experiments.search.progress import DONE, FAILED, ProgressTracker
from itl.experiments.search.sweep import Backend, sweep
from itl.experiments.search.sweep_jobs import SweepJobs
from itl.results import Run, find_runs, read_run
from itl.results.packed_runs import experiment_at, is_packed

Key = tuple[str, str | None, int, int]


def runs_below(folder: Path) -> list[Run]:
    """The finished runs below a folder, in run folders or packed; none if the folder is missing or empty."""
    if not any(folder.rglob("*.json*")):
        return []
    runs, damaged = find_runs([folder])
    if damaged:
        raise UserError("; ".join(damaged))
    return [run for run in runs if run.result is not None]


def recorded(folder: Path, split: str = "test") -> dict[Key, dict[str, Any]]:
    """The results below a folder by (method, variant, buffer, seed)."""
    results = (run.result for run in runs_below(folder))
    return {(r["method"], r["variant"], r["buffer"], r["seed"]): r for r in results if r and r["split"] == split}


def result_at(path: Path) -> dict[str, Any] | None:
    """The result of a run, in a run folder or packed; None if it is not recorded."""
    packed = is_packed(path.parent) and path.name in experiment_at(path.parent).records
    return read_run(path).result if packed or (path / "result.json").exists() else None


def key(config: Config) -> Key:
    """The key under which `recorded` lists a run."""
    return config.method, config.variant, config.buffer, config.seed


def not_recorded(configs: Sequence[Config], folder: Path, split: str = "test") -> list[Config]:
    """The runs that have no result below `folder` yet."""
    done = recorded(folder, split)
    return [config for config in configs if key(config) not in done]


class PrintingTracker(ProgressTracker):
    """Prints a line about each run that has ended."""

    def update(self, event: JobEvent) -> None:
        super().update(event)
        if event["kind"] in (DONE, FAILED):
            outcome = event.get("error") or f"Class-IL {event['class_il']:.1f}, Task-IL {event['task_il']:.1f}"
            print(f"{event['job']}: {outcome}", flush=True)


def run_all(configs: Sequence[Config], folder: Path, data: str, backend: Backend) -> None:
    """Do runs in folders below `folder`. Repeating the call continues unfinished runs and repeats failed ones."""
    jobs = SweepJobs(folder, configs)
    jobs.check_folders()
    sweep(jobs, backend, PrintingTracker(config.name for config in configs), data)
    for config in configs:
        if (folder / config.name / "result.json").exists():  # records do not include models
            shutil.rmtree(folder / config.name / "model", ignore_errors=True)


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a script that does many runs."""
    parser.add_argument("--runs-per-gpu", "--lanes", type=int, default=4, metavar="N", help="runs at once on a GPU")
    parser.add_argument("--minutes", type=float, metavar="N", help="stop at checkpoints before this many minutes")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--data", default="data")
    parser.add_argument("--list", action="store_true", help="list what is missing and stop")
