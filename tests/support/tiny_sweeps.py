"""Runs of a second or less, and fingerprints to compare them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from itl.experiments.config import Config
from itl.experiments.search.jobs import JobEvent, JobSource, StreamCache
from itl.experiments.search.progress import ProgressTracker
from itl.experiments.search.time_limit import TimeLimit
from itl.experiments.search.worker import JobRunner, open_job_source

TINY: dict[str, Any] = {
    "net.width": 2,
    "specialist.steps": 3,
    "tangent.steps": 2,
    "projection.steps": 2,
}
BASE = Config(tasks=2, settings=TINY, curves=0)


def grid(*seeds: int, **changes: Any) -> list[Config]:
    """One tiny configuration per seed, with `changes`."""
    settings = {**TINY, **changes.pop("settings", {})}
    return [replace(BASE, seed=seed, settings=settings, **changes) for seed in seeds]


class RecordingRunner(JobRunner):
    """Runs jobs in this process and records the events."""

    def __init__(
        self,
        source: JobSource,
        out: Path,
        runs_per_gpu: int = 1,
        once: bool = False,
        time_limit: TimeLimit | None = None,
    ) -> None:
        super().__init__(source, out, StreamCache("data"), torch.device("cpu"), runs_per_gpu, once, time_limit)
        self.recorded_events: list[JobEvent] = []

    def emit(self, event: JobEvent) -> None:
        """Record an event."""
        self.recorded_events.append(event)

    def names(self, kind: str) -> list[str]:
        """The jobs of the recorded events of one kind."""
        return [event["job"] for event in self.recorded_events if event["kind"] == kind]


class InProcessBackend:
    """A backend that runs the jobs one after another in this process."""

    def run_jobs(self, spec: dict[str, Any], tracker: ProgressTracker, max_jobs: int, data: str) -> None:
        """Run all jobs of the source that `spec` describes."""
        runner = JobRunner(open_job_source(spec), Path(spec["out"]), StreamCache(data), torch.device("cpu"), 1)
        runner.emit = tracker.update  # type: ignore[method-assign]
        runner.run()


def fingerprint(folder: Path) -> dict[str, Any]:
    """The parts of a finished run that must not depend on where it ran: result, metrics, predictions and weights."""
    result = json.loads((folder / "result.json").read_text())
    weights = [hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.rglob("tensors.safetensors"))]
    return {
        "result": {key: value for key, value in result.items() if key != "seconds"},
        "metrics": (folder / "metrics.jsonl").read_text(),
        "predictions": hashlib.sha256((folder / "predictions.npz").read_bytes()).hexdigest(),
        "weights": weights,
    }
