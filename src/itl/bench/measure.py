"""All measurements of `itl bench` as one record."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from itl.bench import baseline_loop, engine_timing, full_run
from itl.bench.workload import Workload
from itl.results import environment
from itl.streams import load


def measure(
    device: str = "cpu",
    *,
    quick: bool = False,
    parts: tuple[str, ...] = ("ours", "usual", "growth", "lanes", "whole"),
    on_progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Measure speed on one device.

    Args:
        device: "cpu" or "cuda".
        quick: Measure fewer sizes.
        parts: Which measurements to make.
        on_progress: Called with one line per measurement.

    Returns:
        A record that can be written as JSON.
    """
    workload = Workload.for_device(device, quick)
    stream = workload.stream()
    out: dict[str, Any] = {"format": 1, "network": workload.net.get("net.name", "resnet18"), "images": workload.images}
    out |= environment(torch.device(device))
    begin = time.perf_counter()
    if "ours" in parts:
        on_progress("engine: er, derpp, the three stages of itl")
        out["ours"] = engine_timing.steps(workload, stream)
        out["generalist_share"] = generalist_share(out["ours"], workload)
    if "growth" in parts:
        on_progress("tangent learning and projection at several memory sizes")
        out["growth"] = engine_timing.growth(workload, stream)
    if "lanes" in parts:
        on_progress("concurrent runs")
        out["lanes"] = engine_timing.concurrent_runs(workload, stream)
    if "usual" in parts:  # last, so that its loader's workers and its device memory do not affect the engine
        on_progress("baseline loop")
        out["usual"] = {name: {"ms": ms} for name, ms in baseline_loop.measure(workload, stream).items()}
    if "ours" in parts and "usual" in parts:
        out["ratio"] = {name: out["usual"][name]["ms"] / out["ours"][name]["ms"] for name in out["usual"]}
    if "whole" in parts and device == "cpu":
        on_progress("complete runs on seq-digits with engine and baseline loop")
        short = {"specialist.epochs": 1, "tangent.epochs": 4, "projection.epochs": 4} if quick else {}
        out["whole"] = full_run.measure(load("seq-digits"), 20, short, repeats=1 if quick else 2)
    out["seconds"] = time.perf_counter() - begin
    return out


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
