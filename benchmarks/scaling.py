"""What a sweep gains by a second process, and what a run costs more through Ray; on CPUs, one thread a process.

python benchmarks/scaling.py [--write]
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

from itl.config import Config
from itl.results import Folder
from itl.search.board import Board
from itl.search.cells import Cells
from itl.search.cluster import Cluster
from itl.search.local import Local
from itl.search.resources import cores
from itl.search.sweep import Backend, sweep

RESULT = Path(__file__).parent / "results" / "scaling.json"
SETTINGS = {"specialist.epochs": 1, "tangent.epochs": 8, "projection.epochs": 8}
RUNS = 8


def grid(count: int, **changes) -> list[Config]:
    base = Config(method="itl", settings=SETTINGS, tasks=2, curves=0)
    return [replace(base, seed=seed, **changes) for seed in range(count)]


def timed(backend: Backend, configs: list[Config]) -> dict:
    """Seconds of a sweep in all, of each run in its own record, and from one run's end to the next one's."""
    with tempfile.TemporaryDirectory() as out:
        board = Board(config.name for config in configs)
        began = time.monotonic()
        sweep(Cells(Path(out), configs), backend, board)
        total = time.monotonic() - began
        assert len(board.of("done")) == len(configs)
        own = [Folder(Path(out) / config.name).read("result.json")["seconds"]["total"] for config in configs]
        ends = sorted(entry.ended or 0.0 for entry in board.entries.values())
    gaps = [after - before for before, after in pairwise(ends)]
    return {"seconds": total, "runs": own, "gaps": gaps}


def main() -> None:
    torch.set_num_threads(1)
    one = timed(Local(workers=1, threads=1, device="cpu"), grid(RUNS))
    two = timed(Local(workers=2, threads=1, device="cpu"), grid(RUNS))
    ray = timed(Cluster(workers=1, threads=1, device="cpu"), grid(RUNS))
    here, there = (statistics.median(each["gaps"]) for each in (one, ray))
    found = {
        "cores": cores(),
        "load": os.getloadavg()[0],
        "runs": RUNS,
        "seconds_a_run": round(statistics.median(one["runs"]), 2),
        "one_process_s": round(one["seconds"], 1),
        "two_processes_s": round(two["seconds"], 1),
        "speed_up": round(one["seconds"] / two["seconds"], 2),
        "from_end_to_end_local_s": round(here, 2),
        "from_end_to_end_ray_s": round(there, 2),
        "between_runs_local_s": round(statistics.median(map(float.__sub__, one["gaps"], one["runs"][1:])), 3),
        "between_runs_ray_s": round(statistics.median(map(float.__sub__, ray["gaps"], ray["runs"][1:])), 3),
        "begin_and_end_local_s": round(one["seconds"] - sum(one["gaps"]) - one["runs"][0], 1),
        "begin_and_end_ray_s": round(ray["seconds"] - sum(ray["gaps"]) - ray["runs"][0], 1),
        "torch": torch.__version__,
    }
    text = json.dumps(found, indent=1)
    print(text)
    if "--write" in sys.argv:
        RESULT.write_text(text + "\n")


if __name__ == "__main__":
    main()
