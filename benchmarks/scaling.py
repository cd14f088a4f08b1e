"""What a sweep gains by a second process, and what a run costs more through Ray; on CPUs, one thread a process.

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

RESULT = Path(__file__).parent / "results" / "speed" / "scaling.json"
SETTINGS = {"specialist.epochs": 2, "tangent.epochs": 8, "projection.epochs": 8}
RUNS = 24


def grid(count: int, **changes) -> list[Config]:
    base = Config(method="itl", settings=SETTINGS, tasks=2, curves=0)
    return [replace(base, seed=seed, **changes) for seed in range(count)]


def timed(backend: Backend, configs: list[Config]) -> dict:
    """Seconds of a sweep in all, of each run in its own record, and from one run's end to the next one's."""
    with tempfile.TemporaryDirectory() as out:
        tracker = ProgressTracker(config.name for config in configs)
        began = time.monotonic()
        sweep(SweepJobs(Path(out), configs), backend, tracker)
        total = time.monotonic() - began
        assert len(tracker.in_state("done")) == len(configs)
        own = [RunFolder(Path(out) / config.name).read("result.json")["seconds"]["total"] for config in configs]
        ends = sorted(job.ended or 0.0 for job in tracker.jobs.values())
    gaps = [after - before for before, after in pairwise(ends)]
    return {"seconds": total, "runs": own, "gaps": gaps}


def between(told: dict) -> float:
    """Seconds from a run's end to the next one's that are not in the latter's record: the middle one of all."""
    return statistics.median(gap - run for gap, run in zip(told["gaps"], told["runs"][1:], strict=True))


def gain() -> dict:
    one = timed(LocalBackend(workers=1, threads=1, device="cpu"), grid(RUNS))
    two = timed(LocalBackend(workers=2, threads=1, device="cpu"), grid(RUNS))
    return {
        "runs": RUNS,
        "seconds_a_run": round(statistics.median(one["runs"]), 2),
        "one_process_s": round(one["seconds"], 1),
        "two_processes_s": round(two["seconds"], 1),
        "speed_up": round(one["seconds"] / two["seconds"], 2),
        "begin_and_end_s": round(one["seconds"] - sum(one["gaps"]) - one["runs"][0], 1),
    }


def overhead() -> dict:
    local = timed(LocalBackend(workers=1, threads=1, device="cpu"), grid(RUNS))
    ray = timed(RayBackend(workers=1, threads=1, device="cpu"), grid(RUNS))
    return {
        "runs": RUNS,
        "seconds_a_run": round(statistics.median(local["runs"]), 2),
        "between_runs_local_s": round(between(local), 3),
        "between_runs_ray_s": round(between(ray), 3),
        "overhead_of_ray_s": round(between(ray) - between(local), 3),
        "begin_and_end_ray_s": round(ray["seconds"] - sum(ray["gaps"]) - ray["runs"][0], 1),
    }


def main() -> None:
    torch.set_num_threads(1)
    found = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    for name, measure in (("gain", gain), ("overhead", overhead)):
        if name in sys.argv or not {"gain", "overhead"} & set(sys.argv):
            load = os.getloadavg()[0]
            found[name] = {
                "cores": available_cores(),
                "load_before": round(load, 1),
                "torch": torch.__version__,
                **measure(),
            }
    text = json.dumps(found, indent=1)
    print(text)
    if "--write" in sys.argv:
        RESULT.write_text(text + "\n")


if __name__ == "__main__":
    main()
