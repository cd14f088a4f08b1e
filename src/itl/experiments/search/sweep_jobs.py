"""Cells of a sweep as jobs: one run each, in its own folder. The folder records the state of the cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from itl.atomic import make_folder
from itl.errors import UserError
from itl.experiments.config import Config
from itl.experiments.search.job_locks import acquire_job_lock
from itl.experiments.search.jobs import Job, JobContext, JobEvent, ReportValue
from itl.locks import FileLock
from itl.results import RunFolder, read_config

FAILED_FILE = "failed.json"  # in the folder of a cell: why its latest attempt failed


@dataclass(frozen=True)
class SweepJob:
    """One run."""

    config: Config

    @property
    def name(self) -> str:
        """Name of the run and of its folder."""
        return self.config.name

    folder = name

    @property
    def configs(self) -> Sequence[Config]:
        """Configuration of the run."""
        return (self.config,)

    required_folders: Sequence[str] = ()

    def relocate(self, root: Path) -> SweepJob:
        """The job itself: it reads no other folders."""
        return self

    def run(self, context: JobContext) -> JobEvent:
        """Start or resume the run."""
        from itl.experiments.run import run

        result = run(
            self.config,
            context.streams.load(self.config),
            context.root / self.folder,
            device=context.device,
            callbacks=context.callbacks,
            resume=True,
            stop=context.stop,
        )
        return {"class_il": result["class_il"], "task_il": result["task_il"], "seconds": result["seconds"]["total"]}


class SweepJobs:
    """Unfinished cells of a grid, in order. Several processes may share one folder.

    Args:
        out: Folder that contains one folder per run.
        configs: Configurations of the cells.
    """

    claims_ahead = True

    def __init__(self, out: Path, configs: Sequence[Config]) -> None:
        self.out, self.configs = out, list(configs)
        self.unrecorded_failures: set[str] = set()  # failed cells whose folder cannot be written

    @classmethod
    def from_spec(cls, spec: dict[str, Any]) -> SweepJobs:
        """Open the source that `spec` describes."""
        return cls(Path(spec["out"]), [Config.from_dict(values) for values in spec["cells"]])

    @property
    def spec(self) -> dict[str, Any]:
        """Description from which another process can open these cells."""
        return {"source": "sweep", "out": str(self.out), "cells": [asdict(config) for config in self.configs]}

    def claim(self) -> tuple[Job, FileLock] | None:
        """Lock and return the next cell that is neither finished, failed nor locked."""
        for config in self.configs:
            if config.name in self.unrecorded_failures or self._is_finished(config):
                continue
            lock = acquire_job_lock(self.out, config.name)
            if lock is None:
                continue
            if self._is_finished(config):  # finished between the first check and the lock
                lock.release()
                continue
            return SweepJob(config), lock
        return None

    def _is_finished(self, config: Config) -> bool:
        folder = self.out / config.name
        return (folder / "result.json").exists() or (folder / FAILED_FILE).exists()

    def reporter(self, job: Job) -> ReportValue:
        """Ignores values: sweep cells are never pruned."""
        return lambda step, value: False

    def finish(self, job: Job, details: JobEvent) -> None:
        """Do nothing: the run has written its result.json."""

    def fail(self, name: str, message: str) -> None:
        """Record the error in the cell's folder; the next sweep removes it and tries again."""
        try:
            make_folder(self.out / name)
            RunFolder(self.out / name).write(FAILED_FILE, {"error": message})
        except OSError:
            self.unrecorded_failures.add(name)

    def check_folders(self) -> None:
        """Raise a `UserError` if the folder of a cell contains another run, whose result would be mistaken for it."""
        for config in self.configs:
            folder = self.out / config.name
            if folder.exists() and not folder.is_dir():
                raise UserError(f"{folder} is a file, but a run needs a folder of this name. Choose another --out.")
            if (folder / "config.json").exists() and Config.from_dict(read_config(folder)) != config:
                raise UserError(f"{folder} contains a run with other options than the grid. Choose another --out.")

    def prepare(self) -> None:
        """Check that the folder can be written, and forget earlier failures so that these cells run again."""
        if (lock := acquire_job_lock(self.out, "sweep")) is not None:
            lock.release()
        for config in self.configs:
            failure = self.out / config.name / FAILED_FILE
            if failure.exists() and (lock := acquire_job_lock(self.out, config.name)) is not None:
                with lock:
                    failure.unlink(missing_ok=True)

    def state(self, config: Config) -> dict[str, Any] | None:
        """A "done" or "failed" event according to the cell's folder; None if the cell is unfinished."""
        folder = RunFolder(self.out / config.name)
        if (folder.path / "result.json").exists():
            result = folder.read("result.json")
            if not isinstance(result, dict) or not {"class_il", "task_il"} <= result.keys():
                path = folder.path / "result.json"
                raise UserError(f"{path} is not the result of a run. Remove it to continue the run.")
            return {"kind": "done", "class_il": result["class_il"], "task_il": result["task_il"]}
        if (folder.path / FAILED_FILE).exists():
            content = folder.read(FAILED_FILE)
            return {"kind": "failed", "error": str(content.get("error") if isinstance(content, dict) else content)}
        return None
