"""Everything `itl bench` measures, as one record."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from itl.bench import baseline_loop, engine_timing, full_run
from itl.bench.workload import Scale
from itl.results import environment
from itl.streams import load


def measure(
    device: str = "cpu",
    *,
    quick: bool = False,
    parts: tuple[str, ...] = ("ours", "usual", "growth", "lanes", "whole"),
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Measure on `device` (cpu or cuda). `quick`: fewer sizes; `parts`: what to measure; `say` hears of progress."""
    scale = Scale.of(device, quick)
    stream = scale.stream()
    out: dict[str, Any] = {"format": 1, "network": scale.net.get("net.name", "resnet18"), "images": scale.images}
    out |= environment(torch.device(device))
    begin = time.perf_counter()
    if "ours" in parts:
        say("our engine: er, derpp, ITL's three stages")
        out["ours"] = engine_timing.steps(scale, stream)
        out["generalist_share"] = share(out["ours"], scale)
    if "growth" in parts:
        say("tangent learning and projection against the memory's size")
        out["growth"] = engine_timing.growth(scale, stream)
    if "lanes" in parts:
        say("several runs side by side")
        out["lanes"] = engine_timing.lanes(scale, stream)
    if "usual" in parts:  # after ours: its loaders' workers and what it leaves on the device are in nobody's way
        say("the same the usual way")
        out["usual"] = {name: {"ms": ms} for name, ms in baseline_loop.measure(scale, stream).items()}
    if "ours" in parts and "usual" in parts:
        out["ratio"] = {name: out["usual"][name]["ms"] / out["ours"][name]["ms"] for name in out["usual"]}
    if "whole" in parts and device == "cpu":
        say("a whole run on seq-digits, both ways")
        short = {"specialist.epochs": 1, "tangent.epochs": 4, "projection.epochs": 4} if quick else {}
        out["whole"] = full_run.measure(load("seq-digits"), 20, short, rounds=1 if quick else 2)
    out["seconds"] = time.perf_counter() - begin
    return out


def share(times: dict[str, Any], scale: Scale) -> dict[str, float]:
    """Tangent learning + projection, for 60 epochs each, as a share of the specialist over a task of 50 epochs.

    On CUDA the 60 epochs were run, all that they took counts; on a CPU fewer, and their time is scaled up. Of the
    specialist a few epochs were run, captures and all; the others are reckoned as its median one.
    """
    each = times["itl specialist"]["ms"] * -(-scale.images // 32) / 1e3
    specialist = times["itl specialist"]["seconds"] + (50 - scale.epochs) * each
    stages = (times["itl tangent"], times["itl projection"])
    generalist = sum(60 / stage["epochs"] * stage["seconds"] for stage in stages)
    return {"specialist_seconds": specialist, "generalist_seconds": generalist, "share": generalist / specialist}
