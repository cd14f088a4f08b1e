"""Finds, reads and checks runs, in run folders and in packed experiments. Damaged runs are reported, one line each."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from itl.errors import UserError
from itl.results.packed_runs import PackedRun, experiment_at, is_packed
from itl.results.record import RunFolder, is_run
from itl.results.validation import check_config, check_lines, check_predictions, check_result


@dataclass(frozen=True)
class Run:
    """One run's record. `result` is None while the run is unfinished."""

    storage: RunFolder | PackedRun
    config: dict[str, Any]
    result: dict[str, Any] | None

    @property
    def path(self) -> Path:
        """The run folder; for a packed run, the folder it would unpack to."""
        return self.storage.path

    @cached_property
    def lines(self) -> list[dict[str, Any]]:
        """The checked lines of metrics.jsonl."""
        lines = self.storage.read_lines()
        check_lines(lines, self.path / "metrics.jsonl")
        return lines

    @cached_property
    def predictions(self) -> dict[str, np.ndarray] | None:
        """The checked arrays of predictions.npz; None if the run has none."""
        arrays = self.storage.read_arrays("predictions.npz")
        classes = len((self.result or {}).get("class_names") or ())
        return None if arrays is None else check_predictions(arrays, classes, self.path / "predictions.npz")

    @property
    def metadata(self) -> dict[str, Any]:
        """Method, stream, split, buffer, seed and so on: the result, or the configuration of an unfinished run."""
        return self.result if self.result is not None else self.config


def read_run(path: str | os.PathLike[str]) -> Run:
    """Read and check one run.

    Args:
        path: A run folder, or `experiment/name` for a run of a packed experiment.

    Raises:
        UserError: There is no run, or its record is damaged.
    """
    folder = Path(path)
    if folder.is_dir():
        return _read_folder(folder)
    if is_packed(folder.parent) and folder.name in experiment_at(folder.parent).records:
        return _read_packed(experiment_at(folder.parent).run(folder.name))
    raise UserError(f"{folder} is not a folder; name the folder of a run, such as runs/seq-digits-itl-20-seed0")


def _read_folder(path: Path) -> Run:
    if not is_run(path):
        raise UserError(f"{path} has no config.json; is it a run folder?")
    folder = RunFolder(path)
    finished = (path / "result.json").exists()
    result = check_result(folder.read("result.json"), path / "result.json") if finished else None
    config = folder.read("config.json") if (path / "config.json").exists() else {}
    check_config(config, path / "config.json", finished)
    return Run(folder, config, result)


def _read_packed(packed: PackedRun) -> Run:
    result = check_result(packed.result, packed.path / "result.json")
    config = check_config(packed.config or {}, packed.path / "config.json", finished=True)
    return Run(packed, config, result)


def find_runs(paths: Sequence[str | os.PathLike[str]]) -> tuple[list[Run], list[str]]:
    """Find the runs in and below folders.

    Args:
        paths: Run folders, packed experiments, or folders that contain either.

    Returns:
        The runs in order of path, and one line for each run below a folder that cannot be read.

    Raises:
        UserError: A path does not exist or contains no run, or a run that was named itself is damaged.
    """
    runs: dict[Path, Run] = {}
    damaged: list[str] = []
    for path in map(Path, paths):
        if not path.is_dir() or is_run(path):
            runs.setdefault(path.resolve(), read_run(path))
            continue
        stored_runs = list(_below(path))
        if not stored_runs:
            raise UserError(f"there is no run in {path}; `itl run` makes one")
        for stored in stored_runs:
            try:
                run = _read_packed(stored) if isinstance(stored, PackedRun) else _read_folder(stored.path)
                runs.setdefault(stored.path.resolve(), run)
            except UserError as error:
                damaged.append(str(error))
    return list(runs.values()), damaged


def contains_runs(path: str | os.PathLike[str]) -> bool:
    """Whether there is a run in or below a folder; no record is read."""
    return any(is_run(Path(root)) or is_packed(Path(root)) for root, _, _ in os.walk(path))


def _below(path: Path) -> Iterator[RunFolder | PackedRun]:
    """The runs below a folder. A run folder takes the place of a packed run of the same name.

    Folders inside a run (its model, its specialists) are not searched.
    """
    for root, subfolders, _ in os.walk(path):
        folder = Path(root)
        subfolders[:] = [] if is_run(folder) else sorted(name for name in subfolders if not name.startswith("."))
        if is_run(folder):
            yield RunFolder(folder)
        elif is_packed(folder):
            experiment = experiment_at(folder)
            yield from (experiment.run(name) for name in experiment.records if not is_run(folder / name))
