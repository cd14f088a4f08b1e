"""Runs on disk: found, read and checked. What is damaged or foreign is said in a line, never passed over silently."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from itl.errors import UserError
from itl.results.record import RunFolder
from itl.results.validation import check_config, check_line, check_result


@dataclass(frozen=True)
class Run:
    """One run's record. `result` is None while the run is unfinished; `config` and `lines` say how far it came."""

    path: Path
    config: dict[str, Any]
    result: dict[str, Any] | None

    @cached_property
    def lines(self) -> list[dict[str, Any]]:
        """What metrics.jsonl holds, checked."""
        lines = RunFolder(self.path).lines()
        for number, line in enumerate(lines, 1):
            check_line(line, f"{self.path / 'metrics.jsonl'}, line {number},")
        return lines

    @property
    def metadata(self) -> dict[str, Any]:
        """Method, stream, split and so on, of a finished run or an unfinished one."""
        return self.result if self.result is not None else self.config


def is_run(path: Path) -> bool:
    """Whether a folder looks like a run's (it may still be damaged)."""
    return (path / "config.json").is_file() or (path / "result.json").is_file()


def read_run(path: str | os.PathLike[str]) -> Run:
    """The run in a folder, checked; a `UserError` of one line where it is damaged or none of ours."""
    folder = RunFolder(path)
    if not folder.path.is_dir():
        raise UserError(f"{folder.path} is no folder; give the folder of a run, such as runs/seq-digits-itl-20-seed0")
    if not is_run(folder.path):
        raise UserError(f"{folder.path} has no config.json; is it the folder of a run?")
    finished = (folder.path / "result.json").exists()
    result = check_result(folder.read("result.json"), folder.path / "result.json") if finished else None
    config = folder.read("config.json") if (folder.path / "config.json").exists() else {}
    check_config(config, folder.path / "config.json", finished)
    return Run(folder.path, config, result)


def find_runs(places: Sequence[str | os.PathLike[str]]) -> tuple[list[Run], list[str]]:
    """The runs in and under `places`, in order of path, and a line for each that cannot be read.

    A place that is itself a run must be readable; below a folder one damaged run does not hide the others.
    """
    runs: dict[Path, Run] = {}
    wrong: list[str] = []
    for place in map(Path, places):
        if not place.is_dir():
            raise UserError(f"{place} is no folder; give the folder of a run, or one that holds runs")
        if is_run(place):
            runs.setdefault(place.resolve(), read_run(place))
            continue
        there = list(_below(place))
        if not there:
            raise UserError(f"there is no run in {place}; `itl run` makes one")
        for path in there:
            try:
                runs.setdefault(path.resolve(), read_run(path))
            except UserError as error:
                wrong.append(str(error))
    return list(runs.values()), wrong


def _below(place: Path) -> Iterable[Path]:
    """The folders of runs under `place`; what lies inside a run (its model, its specialists) is none."""
    for root, folders, _ in os.walk(place):
        folders[:] = [] if is_run(Path(root)) else sorted(name for name in folders if not name.startswith("."))
        if is_run(Path(root)):
            yield Path(root)
