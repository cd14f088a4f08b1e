"""Records of many runs: which exist, making one more, and making several at once on a GPU."""

from __future__ import annotations

import os
import shutil
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.jobs import Job, run_jobs
from itl.errors import UserError
from itl.experiments.config import Config
from itl.results import Run, find_runs, read_run
from itl.results.packed import experiment_at, is_packed

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


def run_and_record(config: Config, out: Path, data: str, device: str) -> str:
    """Do one run in this process and return a line about its outcome. A failed run leaves earlier records intact."""
    from itl.experiments.run import run

    draft = out.with_name(f".{out.name}")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        result = run(config, config.load_stream(data), draft, device=device, save=False)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    shutil.rmtree(out, ignore_errors=True)
    os.replace(draft, out)
    return f"Class-IL {result['class_il']:.1f}, Task-IL {result['task_il']:.1f}"


def run_on_gpu(
    configs: Sequence[Config],
    folder_of: Callable[[Config], Path],
    data: str,
    device: str,
    workers: int,
    time_limit: float = float("inf"),
) -> None:
    """Do several runs at once in this process; start none that is expected to end after `time_limit` seconds."""
    jobs = [Job(c.name, partial(run_and_record, c, folder_of(c), data, device)) for c in configs]
    run_jobs(jobs, workers, device, time_limit)


def mean_std(values: Sequence[float]) -> str:
    """`66.1 ± 0.6`, or the mean alone for a single value."""
    deviation = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{deviation}"
