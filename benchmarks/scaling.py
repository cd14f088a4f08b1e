"""Speed-up of a sweep with two processes, and the overhead of Ray per run; on CPUs, one thread per process.

python benchmarks/scaling.py [gain] [overhead] [--write]
"""

import json
import os
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import torch

from itl.experiments.config import Config
from itl.experiments.search.local_backend import LocalBackend
from itl.experiments.search.progress import ProgressTracker
from itl.experiments.search.ray_backend import RayBackend
from itl.experiments.search.resources import available_cores
from itl.experiments.search.sweep import Backend, sweep
from itl.experiments.search.sweep_jobs import SweepJobs
from itl.results import RunFolder

RECORD = Path(__file__).parent / "results" / "speed" / "scaling.json"
SETTINGS = {"specialist.epochs": 2, "tangent.epochs": 8, "projection.epochs": 8}
RUNS = 24


def configs(count: int) -> list[Config]:
    """Short runs on seq-digits that differ in their seed."""
    base = Config(method="itl", settings=SETTINGS, tasks=2, curves=0)
    return [replace(base, seed=seed) for seed in range(count)]


def time_sweep(backend: Backend, configs: list[Config]) -> dict:
    """Seconds of a sweep (`seconds`), of each run by its own record (`runs`), and between ends of runs (`gaps`)."""
    with tempfile.TemporaryDirectory() as out:
        tracker = ProgressTracker(config.name for config in configs)
        start = time.monotonic()
        sweep(SweepJobs(Path(out), configs), backend, tracker)
        total = time.monotonic() - start
        assert len(tracker.in_state("done")) == len(configs)
        results = [RunFolder(Path(out) / config.name).read("result.json") for config in configs]
        ends = sorted(job.ended or 0.0 for job in tracker.jobs.values())
    gaps = [after - before for before, after in pairwise(ends)]
    return {"seconds": total, "runs": [result["seconds"]["total"] for result in results], "gaps": gaps}


def seconds_between_runs(times: dict) -> float:
    """Median of the seconds between the ends of consecutive runs that are not in the record of the later run."""
    return statistics.median(gap - run for gap, run in zip(times["gaps"], times["runs"][1:], strict=True))


def gain() -> dict:
    """Speed-up of two processes over one."""
    single = time_sweep(LocalBackend(workers=1, threads=1, device="cpu"), configs(RUNS))
    double = time_sweep(LocalBackend(workers=2, threads=1, device="cpu"), configs(RUNS))
    return {
        "runs": RUNS,
        "seconds_a_run": round(statistics.median(single["runs"]), 2),
        "one_process_s": round(single["seconds"], 1),
        "two_processes_s": round(double["seconds"], 1),
        "speed_up": round(single["seconds"] / double["seconds"], 2),
        "begin_and_end_s": round(single["seconds"] - sum(single["gaps"]) - single["runs"][0], 1),
    }


def overhead() -> dict:
    """Seconds that Ray adds to each run, and to the start and end of a sweep."""
    local = time_sweep(LocalBackend(workers=1, threads=1, device="cpu"), configs(RUNS))
    ray = time_sweep(RayBackend(workers=1, threads=1, device="cpu"), configs(RUNS))
    between_local, between_ray = seconds_between_runs(local), seconds_between_runs(ray)
    return {
        "runs": RUNS,
        "seconds_a_run": round(statistics.median(local["runs"]), 2),
        "between_runs_local_s": round(between_local, 3),
        "between_runs_ray_s": round(between_ray, 3),
        "overhead_of_ray_s": round(between_ray - between_local, 3),
        "begin_and_end_ray_s": round(ray["seconds"] - sum(ray["gaps"]) - ray["runs"][0], 1),
    }


def main() -> None:
    torch.set_num_threads(1)
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    for name, measure in (("gain", gain), ("overhead", overhead)):
        if name in sys.argv or not {"gain", "overhead"} & set(sys.argv):
            load = os.getloadavg()[0]
            record[name] = {
                "cores": available_cores(),
                "load_before": round(load, 1),
                "torch": torch.__version__,
                **measure(),
            }
    text = json.dumps(record, indent=1)
    print(text)
    if "--write" in sys.argv:
        RECORD.write_text(text + "\n")


if __name__ == "__main__":
    main()
