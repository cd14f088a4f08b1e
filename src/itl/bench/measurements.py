"""All measurements of `itl bench` as one record."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from itl.bench import baseline_loop, engine_timing, full_run
from itl.bench.workload import Workload
from itl.streams import load

RENAMED_KEYS = {"ours": "engine", "usual": "baseline", "whole": "full_run"}  # of records of earlier versions


def measure(
    device: str = "cpu",
    *,
    quick: bool = False,
    side: int | None = None,
    on_progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Measure speed on one device.

    Args:
        device: "cpu" or "cuda".
        quick: Measure fewer sizes.
        side: Height and width of the images in pixels; None: 32 on CUDA, 16 on a CPU.
        on_progress: Called with one line per measurement.

    Returns:
        A record that can be written as JSON.
    """
    workload = Workload.for_device(device, quick, side)
    stream = workload.stream()
    out = workload.describe()
    begin = time.perf_counter()
    on_progress("engine: er, derpp, the three stages of itl")
    out["engine"] = engine_timing.steps(workload, stream)
    out["generalist_share"] = generalist_share(out["engine"], workload)
    on_progress("tangent learning and projection at several memory sizes")
    out["growth"] = engine_timing.growth(workload, stream)
    on_progress("concurrent runs")
    out["concurrent_runs"] = engine_timing.concurrent_runs(workload, stream)
    on_progress("baseline loop")  # last, so that its loader's workers and its device memory do not affect the engine
    out["baseline"] = {name: {"ms": ms} for name, ms in baseline_loop.measure(workload, stream).items()}
    out["ratio"] = {name: out["baseline"][name]["ms"] / out["engine"][name]["ms"] for name in out["baseline"]}
    if device == "cpu":
        on_progress("complete runs on seq-digits with engine and baseline loop")
        short = {"specialist.epochs": 1, "tangent.epochs": 4, "projection.epochs": 4} if quick else {}
        out["full_run"] = full_run.measure(load("seq-digits"), 20, short, repeats=1 if quick else 2)
    out["seconds"] = time.perf_counter() - begin
    return out


def with_current_keys(record: Any) -> Any:
    """A record of any version, with the keys that `measure` uses now."""
    if isinstance(record, list):
        return [with_current_keys(row) for row in record]
    if not isinstance(record, dict):
        return record
    renamed = {**RENAMED_KEYS, "lanes": "concurrent_runs" if isinstance(record.get("lanes"), list) else "runs"}
    return {renamed.get(key, key): with_current_keys(value) for key, value in record.items()}


def generalist_share(times: dict[str, Any], workload: Workload) -> dict[str, float]:
    """Time of tangent learning and projection (60 epochs each) as a share of the specialist's (50 epochs of a task).

    On CUDA all 60 epochs are timed; on a CPU fewer, scaled up. Of the specialist a few epochs are timed, including
    graph capture; the others count as the median epoch.
    """
    epoch_seconds = times["itl specialist"]["ms"] * -(-workload.images // 32) / 1e3
    specialist = times["itl specialist"]["seconds"] + (50 - workload.epochs) * epoch_seconds
    stages = (times["itl tangent"], times["itl projection"])
    generalist = sum(60 / stage["epochs"] * stage["seconds"] for stage in stages)
    return {"specialist_seconds": specialist, "generalist_seconds": generalist, "share": generalist / specialist}
