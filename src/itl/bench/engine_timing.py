"""Timing of the engine, taken at the end of rounds, where the host waits for the device anyway."""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial
from statistics import median
from threading import Barrier
from typing import Any

import torch

from itl.bench.workload import Workload
from itl.callbacks.base import Callback
from itl.engine.concurrency import run_concurrently
from itl.engine.stage import Stage
from itl.learner import Learner
from itl.streams import Stream

LOW_LEARNING_RATES = {"tangent.lr": 1e-4, "projection.lr": 1e-5}  # training on noise must not diverge
# The baseline loop takes steps of SGD; the stream's defaults solve tangent learning and monitor the projection.
SGD_STAGES = {
    "half_pipe_scale": 1.0,
    "tangent.solver": "sgd",
    "projection.loss": "mse",
    "projection.teacher_rms": None,
    "projection.monitor": False,
}
WARM_UP_EPOCHS = 2  # before concurrent runs are timed: graphs are captured, the memory is full


class StageTimer(Callback):
    """Records start, end and number of steps of each round of each stage."""

    def __init__(self) -> None:
        self.rounds: dict[str, list[tuple[float, float, int]]] = {}
        self.since = 0.0

    def on_stage_start(self, learner: Learner, stage: Stage) -> None:
        """Start timing the stage's first round."""
        self.rounds[stage.name] = []
        self.since = time.perf_counter()

    def on_round_end(self, learner: Learner, stage: Stage, epoch: int, loss: float) -> None:
        """Record a finished round."""
        done = self.rounds[stage.name]
        k, rounds = len(done), stage.planner
        after = rounds.first_step(k + 1) if k + 1 < rounds.num_rounds else rounds.total_steps
        now = time.perf_counter()
        done.append((self.since, now, after - rounds.first_step(k)))
        self.since = now

    def ms(self, stage: str) -> float:
        """Milliseconds per step: median over all rounds but the first, in which graphs are captured."""
        rounds = self.rounds[stage]
        return median(1e3 * (end - begin) / steps for begin, end, steps in rounds[1:] or rounds)

    def count(self, stage: str) -> int:
        """Number of steps of a stage."""
        return sum(steps for _, _, steps in self.rounds[stage])

    def seconds(self, stage: str) -> float:
        """Seconds of a stage, including graph capture."""
        return sum(end - begin for begin, end, _ in self.rounds[stage])


def train_learner(
    workload: Workload, stream: Stream, method: str, buffer: int, settings: dict[str, Any], tasks: int
) -> StageTimer:
    """Train a learner on the first tasks and return the timer, which holds the last task's stages."""
    timer = StageTimer()
    given = {
        **workload.net,
        **LOW_LEARNING_RATES,
        **SGD_STAGES,
        "specialist.epochs": workload.epochs,
        **workload.settings,
        **settings,
    }
    learner = Learner(method, buffer, 0, stream.classes, settings=given, device=workload.device, callback=timer)
    for task in stream.tasks[:tasks]:
        learner.learn(task)
    return timer


def steps(workload: Workload, stream: Stream) -> dict[str, Any]:
    """Milliseconds per step and peak memory of er, derpp and the three stages of itl."""
    out: dict[str, Any] = {}
    for method in ("er", "derpp"):
        _reset_peak_memory(workload)
        timer = train_learner(workload, stream, method, 200, {}, tasks=1)
        out[method] = {"ms": timer.ms("specialist"), "bytes": _peak_memory(workload)}
    _reset_peak_memory(workload)
    epochs = 60 if workload.device == "cuda" else 4
    overrides = {"tangent.epochs": epochs, "projection.epochs": epochs}
    timer = train_learner(workload, stream, "itl", 200, overrides, tasks=2)
    for stage, name in (("specialist", "itl specialist"), ("tangent", "itl tangent"), ("projection", "itl projection")):
        out[name] = {"ms": timer.ms(stage), "seconds": timer.seconds(stage), "bytes": _peak_memory(workload)}
        if stage != "specialist":
            out[name]["epochs"] = epochs
    return out


def growth(workload: Workload, stream: Stream) -> list[dict[str, Any]]:
    """Seconds per epoch of tangent learning and of projection for each memory size."""
    out = []
    for size in workload.buffers:
        epochs = max(3, (24 if workload.device == "cuda" else 3) * 200 // size)
        overrides = {"specialist.steps": 2, "tangent.epochs": epochs, "projection.epochs": epochs}
        timer = train_learner(workload, stream, "itl", size, overrides, tasks=1)
        both = ("tangent", "projection")
        per_epoch = {stage: timer.ms(stage) * timer.count(stage) / epochs / 1e3 for stage in both}
        out.append({"buffer": size, **per_epoch, "per_image_us": 1e6 * sum(per_epoch.values()) / size})
    return out


def concurrent_runs(workload: Workload, stream: Stream) -> list[dict[str, Any]]:
    """Milliseconds per step and run of concurrent `er` runs, after all of them have captured their steps."""
    out = []
    for count in workload.concurrent_runs:
        jobs = [partial(_time_concurrent_run, workload, stream, Barrier(count))] * count
        spans = run_concurrently(jobs, count, torch.device(workload.device))
        seconds = max(end for _, end, _ in spans) - min(begin for begin, _, _ in spans)
        out.append({"runs": count, "ms_per_run_step": 1e3 * seconds / sum(steps for _, _, steps in spans)})
    return out


class _Finished(Exception):
    """A run has been timed long enough."""


class _SynchronizedTimer(StageTimer):
    """Waits for the other runs after the warm-up epochs, times some epochs and ends the run."""

    TIMED_EPOCHS = 3

    def __init__(self, barrier: Barrier) -> None:
        super().__init__()
        self.barrier = barrier

    def on_round_end(self, learner: Learner, stage: Stage, epoch: int, loss: float) -> None:
        super().on_round_end(learner, stage, epoch, loss)
        if epoch == WARM_UP_EPOCHS:
            self.barrier.wait(timeout=120)
            self.since = time.perf_counter()
        if epoch == WARM_UP_EPOCHS + self.TIMED_EPOCHS:
            raise _Finished


def _time_concurrent_run(workload: Workload, stream: Stream, barrier: Barrier) -> tuple[float, float, int]:
    """Start, end and number of steps of one run's timed epochs."""
    timer = _SynchronizedTimer(barrier)
    # The benchmark's 50 epochs are kept, so that the captured step is the same.
    settings = {**workload.net, **workload.settings}
    learner = Learner("er", 200, 0, stream.classes, settings=settings, device=workload.device, callback=timer)
    with suppress(_Finished):
        learner.learn(stream.tasks[0])
    timed = timer.rounds["specialist"][WARM_UP_EPOCHS:]
    return timed[0][0], timed[-1][1], sum(steps for _, _, steps in timed)


def _reset_peak_memory(workload: Workload) -> None:
    if workload.device == "cuda":
        torch.cuda.reset_peak_memory_stats()


def _peak_memory(workload: Workload) -> int:
    """Peak memory in bytes: of the device on CUDA, of the process on a CPU."""
    if workload.device == "cuda":
        return torch.cuda.max_memory_allocated()
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
