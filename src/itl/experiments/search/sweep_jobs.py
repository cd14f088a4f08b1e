"""The cells of a sweep as work: a run each, in a folder of its own. The folder alone says how far a cell is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from itl.callbacks.base import Callback
from itl.errors import UserError
from itl.experiments.config import Config
from itl.experiments.search.job_locks import Claim, claim
from itl.experiments.search.jobs import Event, Report, Streams, Work
from itl.results import RunFolder, read_config

FAILED = "failed.json"  # in a cell's folder: why it could not be done when last tried


@dataclass(frozen=True)
class CellWork:
    """One run."""

    config: Config

    @property
    def name(self) -> str:
        """The run's name, which is its folder's."""
        return self.config.name

    folder = name

    @property
    def configs(self) -> Sequence[Config]:
        """The one run."""
        return (self.config,)

    needs: Sequence[str] = ()

    def do(self, root: Path, streams: Streams, callbacks: Sequence[Callback], device: str, report: Report) -> Event:
        """Begin the run or go on with it."""
        from itl.experiments.run import run

        stream = streams.of(self.config)
        result = run(self.config, stream, root / self.folder, device=device, callbacks=callbacks, resume=True)
        return {"class_il": result["class_il"], "task_il": result["task_il"], "seconds": result["seconds"]["total"]}


class Cells:
    """The cells that are left of a grid, in its order. Several processes may take from one folder."""

    ahead = True

    def __init__(self, out: Path, configs: Sequence[Config]) -> None:
        self.out, self.configs = out, list(configs)
        self.unsaid: set[str] = set()  # what failed here and could not be said in its folder

    @classmethod
    def of(cls, spec: dict[str, Any]) -> Cells:
        """As `spec` describes it, in another process."""
        return cls(Path(spec["out"]), [Config.of(values) for values in spec["cells"]])

    @property
    def spec(self) -> dict[str, Any]:
        """What another process needs to take from these cells too."""
        return {"source": "cells", "out": str(self.out), "cells": [asdict(config) for config in self.configs]}

    def claim(self) -> tuple[Work, Claim] | None:
        """The next cell that is not done, has not failed and is nobody's."""
        for config in self.configs:
            if config.name in self.unsaid or self._over(config):
                continue
            mine = claim(self.out, config.name)
            if mine is None:
                continue
            if self._over(config):  # between the look and the lock
                mine.release()
                continue
            return CellWork(config), mine
        return None

    def _over(self, config: Config) -> bool:
        folder = self.out / config.name
        return (folder / "result.json").exists() or (folder / FAILED).exists()

    def report(self, work: Work) -> Report:
        """Nobody gives up a cell."""
        return lambda step, value: False

    def finish(self, work: Work, details: Event) -> None:
        """Its result.json says it all."""

    def fail(self, name: str, message: str) -> None:
        """Say why in the cell's folder, where the next sweep finds and removes it."""
        try:
            (self.out / name).mkdir(parents=True, exist_ok=True)
            RunFolder(self.out / name).write(FAILED, {"error": message})
        except OSError:
            self.unsaid.add(name)

    def check(self) -> None:
        """Refuse folders that hold another run: its result is not the cell's."""
        for config in self.configs:
            folder = RunFolder(self.out / config.name)
            if folder.path.exists() and not folder.path.is_dir():
                raise UserError(f"{folder.path} is a file, where the run's folder would be; choose another --out")
            if (folder.path / "config.json").exists() and Config.of(read_config(folder.path)) != config:
                raise UserError(f"{folder.path} is a run with other options than the grid's; choose another --out")

    def open(self) -> None:
        """Before a sweep: what failed is tried again, and a place that cannot be written to is said at once."""
        if (place := claim(self.out, "sweep")) is not None:
            place.release()
        for config in self.configs:
            folder = RunFolder(self.out / config.name)
            if (folder.path / FAILED).exists() and (mine := claim(self.out, config.name)) is not None:
                with mine:
                    (folder.path / FAILED).unlink(missing_ok=True)

    def state(self, config: Config) -> dict[str, Any] | None:
        """What the folder says of a cell: its result, its failure, or nothing yet."""
        folder = RunFolder(self.out / config.name)
        if (folder.path / "result.json").exists():
            result = folder.read("result.json")
            if not isinstance(result, dict) or not {"class_il", "task_il"} <= result.keys():
                raise UserError(f"{folder.path / 'result.json'} is no run's result; remove it, and the run goes on")
            return {"kind": "done", "class_il": result["class_il"], "task_il": result["task_il"]}
        if (folder.path / FAILED).exists():
            said = folder.read(FAILED)
            return {"kind": "failed", "error": str(said.get("error") if isinstance(said, dict) else said)}
        return None
