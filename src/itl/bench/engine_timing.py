"""Our engine's seconds, taken where a round ends and the device has been waited for anyway."""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial
from statistics import median
from threading import Barrier
from typing import Any

import torch

from itl.bench.workload import Scale
from itl.callbacks.base import Callback
from itl.engine.concurrency import run_concurrently
from itl.engine.stage import Stage
from itl.learner import Learner
from itl.streams import Stream

GENTLE = {"tangent.lr": 1e-4, "projection.lr": 1e-5}  # noise must not diverge; the arithmetic is the same
WARM = 2  # epochs before lanes are timed: graphs are captured, the memory is full


class Stopwatch(Callback):
    """When each round of each stage began and ended, and how many steps it had."""

    def __init__(self) -> None:
        self.rounds: dict[str, list[tuple[float, float, int]]] = {}
        self.since = 0.0

    def stage_begins(self, learner: Learner, stage: Stage) -> None:
        """A stage's first round begins."""
        self.rounds[stage.name] = []
        self.since = time.perf_counter()

    def round_ends(self, learner: Learner, stage: Stage, epoch: int, loss: float) -> None:
        """One round more."""
        done = self.rounds[stage.name]
        k, rounds = len(done), stage.planner
        after = rounds.first_step(k + 1) if k + 1 < rounds.num_rounds else rounds.total_steps
        now = time.perf_counter()
        done.append((self.since, now, after - rounds.first_step(k)))
        self.since = now

    def ms(self, stage: str) -> float:
        """Milliseconds a step, the median over the rounds but the first, in which graphs are captured."""
        rounds = self.rounds[stage]
        return median(1e3 * (end - begin) / steps for begin, end, steps in rounds[1:] or rounds)

    def count(self, stage: str) -> int:
        """Its steps."""
        return sum(steps for _, _, steps in self.rounds[stage])

    def seconds(self, stage: str) -> float:
        """The whole stage, capture and all."""
        return sum(end - begin for begin, end, _ in self.rounds[stage])


def teach(scale: Scale, stream: Stream, method: str, buffer: int, settings: dict[str, Any], tasks: int) -> Stopwatch:
    """Teach a learner the first tasks; the stopwatch knows the last one's stages."""
    watch = Stopwatch()
    given = {**scale.net, **GENTLE, "specialist.epochs": scale.epochs, **scale.settings, **settings}
    learner = Learner(method, buffer, 0, stream.classes, settings=given, device=scale.device, callback=watch)
    for task in stream.tasks[:tasks]:
        learner.learn(task)
    return watch


def steps(scale: Scale, stream: Stream) -> dict[str, Any]:
    """ms a step of er, derpp and ITL's three stages, with the memory each took."""
    out: dict[str, Any] = {}
    for method in ("er", "derpp"):
        _reset_peak(scale)
        watch = teach(scale, stream, method, 200, {}, tasks=1)
        out[method] = {"ms": watch.ms("specialist"), "bytes": _peak(scale)}
    _reset_peak(scale)
    epochs = 60 if scale.device == "cuda" else 4
    few = {"tangent.epochs": epochs, "projection.epochs": epochs}
    watch = teach(scale, stream, "itl", 200, few, tasks=2)
    for stage, name in (("specialist", "itl specialist"), ("tangent", "itl tangent"), ("projection", "itl projection")):
        out[name] = {"ms": watch.ms(stage), "seconds": watch.seconds(stage), "bytes": _peak(scale)}
        if stage != "specialist":
            out[name]["epochs"] = epochs
    return out


def growth(scale: Scale, stream: Stream) -> list[dict[str, Any]]:
    """Seconds an epoch of tangent learning and of projection, for each memory size."""
    out = []
    for size in scale.buffers:
        epochs = max(3, (24 if scale.device == "cuda" else 3) * 200 // size)
        few = {"specialist.steps": 2, "tangent.epochs": epochs, "projection.epochs": epochs}
        watch = teach(scale, stream, "itl", size, few, tasks=1)
        both = ("tangent", "projection")
        per_epoch = {stage: watch.ms(stage) * watch.count(stage) / epochs / 1e3 for stage in both}
        out.append({"buffer": size, **per_epoch, "per_image_us": 1e6 * sum(per_epoch.values()) / size})
    return out


def lanes(scale: Scale, stream: Stream) -> list[dict[str, Any]]:
    """ms a run-step of er with several runs side by side, once all of them have captured their steps."""
    out = []
    for count in scale.lanes:
        jobs = [partial(_timed_lane, scale, stream, Barrier(count))] * count
        spans = run_concurrently(jobs, count, torch.device(scale.device))
        seconds = max(end for _, end, _ in spans) - min(begin for begin, _, _ in spans)
        out.append({"lanes": count, "ms_per_run_step": 1e3 * seconds / sum(steps for _, _, steps in spans)})
    return out


class _Enough(Exception):
    """A lane has been timed long enough."""


class _Together(Stopwatch):
    """Waits for the other lanes after the first two epochs, then times some and ends the run."""

    TIMED = 3

    def __init__(self, everyone: Barrier) -> None:
        super().__init__()
        self.everyone = everyone

    def round_ends(self, learner: Learner, stage: Stage, epoch: int, loss: float) -> None:
        super().round_ends(learner, stage, epoch, loss)
        if epoch == WARM:
            self.everyone.wait(timeout=120)
            self.since = time.perf_counter()
        if epoch == WARM + self.TIMED:
            raise _Enough


def _timed_lane(scale: Scale, stream: Stream, everyone: Barrier) -> tuple[float, float, int]:
    """When one lane's timed epochs began and ended, and how many steps they had."""
    watch = _Together(everyone)
    settings = {**scale.net, **scale.settings}  # the epochs are the benchmark's 50: what is captured is, too
    learner = Learner("er", 200, 0, stream.classes, settings=settings, device=scale.device, callback=watch)
    with suppress(_Enough):
        learner.learn(stream.tasks[0])
    timed = watch.rounds["specialist"][WARM:]
    return timed[0][0], timed[-1][1], sum(steps for _, _, steps in timed)


def _reset_peak(scale: Scale) -> None:
    if scale.device == "cuda":
        torch.cuda.reset_peak_memory_stats()


def _peak(scale: Scale) -> int:
    """Bytes: the device's peak on CUDA, the process's on a CPU."""
    if scale.device == "cuda":
        return torch.cuda.max_memory_allocated()
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
