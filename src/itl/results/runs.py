"""Runs on disk: found, read and checked. What is damaged or foreign is said in a line, never passed over silently."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from itl.errors import UserError
from itl.results.record import FORMAT, Folder

NEEDED: dict[str, Any] = {  # what every result has had since the first format, and its type
    **dict.fromkeys(("method", "stream", "split"), str),
    **dict.fromkeys(("buffer", "seed"), int),
    **dict.fromkeys(("class_il", "task_il"), (int, float)),
    **dict.fromkeys(("class_il_matrix", "task_il_matrix"), list),
    **dict.fromkeys(("seconds", "hardware"), dict),
    "command": str,
}


@dataclass(frozen=True)
class Run:
    """One run's record. `result` is None while the run is unfinished; `config` and `lines` say how far it came."""

    path: Path
    config: dict[str, Any]
    result: dict[str, Any] | None

    @cached_property
    def lines(self) -> list[dict[str, Any]]:
        """What metrics.jsonl holds."""
        return Folder(self.path).lines()

    @property
    def facts(self) -> dict[str, Any]:
        """Method, stream, split and so on, of a finished run or an unfinished one."""
        return self.result if self.result is not None else self.config


def is_run(path: Path) -> bool:
    """Whether a folder looks like a run's (it may still be damaged)."""
    return (path / "config.json").is_file() or (path / "result.json").is_file()


def read_run(path: str | os.PathLike[str]) -> Run:
    """The run in a folder, checked; a `UserError` of one line where it is damaged or none of ours."""
    folder = Folder(path)
    if not folder.path.is_dir():
        raise UserError(f"{folder.path} is no folder; give the folder of a run, such as runs/seq-digits-itl-20-seed0")
    if not is_run(folder.path):
        raise UserError(f"{folder.path} has no config.json; is it the folder of a run?")
    finished = (folder.path / "result.json").exists()
    result = _checked(folder.read("result.json"), folder.path / "result.json") if finished else None
    config = folder.read("config.json") if (folder.path / "config.json").exists() else {}
    if not isinstance(config, dict) or (result is None and not {"method", "stream", "seed"} <= config.keys()):
        raise UserError(f"{folder.path / 'config.json'} is not a run's configuration; is it the folder of a run?")
    return Run(folder.path, config, result)


def _checked(result: Any, path: Path) -> dict[str, Any]:
    """A result.json with everything in it that tables and figures rest on."""
    if not isinstance(result, dict) or not isinstance(result.get("format"), int):
        raise UserError(f"{path} is not a result of itl's: it has no format version")
    if not 1 <= result["format"] <= FORMAT:
        raise UserError(f"{path} has format {result['format']}, this itl reads 1 to {FORMAT}; use a newer itl")
    for name, kind in NEEDED.items():
        if not isinstance(result.get(name), kind) or isinstance(result[name], bool):
            raise UserError(f"{path} is damaged: '{name}' is missing or of the wrong kind; run it again")
    for name in ("class_il", "task_il"):
        if not math.isfinite(result[name]):
            raise UserError(f"{path} is damaged: '{name}' is {result[name]}; run it again")
        matrix = result[f"{name}_matrix"]
        if not matrix or any(not isinstance(row, list) or len(row) < len(matrix) for row in matrix):
            raise UserError(f"{path} is damaged: '{name}_matrix' is not a row a task; run it again")
    return result


def find(places: Sequence[str | os.PathLike[str]]) -> tuple[list[Run], list[str]]:
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
