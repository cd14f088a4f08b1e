"""Whether a record is whole: everything that tables and figures rest on is there and of its kind."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from itl.errors import UserError
from itl.results.record import FORMAT, RunFolder

MOST_CLASSES = 4096  # where a record does not name its classes

Check = Callable[[Any], bool]


def _is(kind: type | tuple[type, ...]) -> Check:
    return lambda value: isinstance(value, kind) and not isinstance(value, bool)


def _number(value: Any) -> bool:
    return _is((int, float))(value) and math.isfinite(value)


def _list(of: Check) -> Check:
    return lambda value: isinstance(value, list) and all(map(of, value))


def _or_none(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _dict(of: Check) -> Check:
    return lambda value: isinstance(value, dict) and all(map(of, value.values()))


def _matrix(value: Any) -> bool:
    """A row a task, each with an accuracy for every task."""
    return _list(_list(_number))(value) and bool(value) and all(len(row) == len(value) for row in value)


def _memory(value: Any) -> bool:
    """Columns of one length, one entry a slot."""
    columns = ("label", "task", "row", "written")
    if not _dict(_list(_is(int)))(value) or not set(columns) <= value.keys():
        return False
    return len({len(value[name]) for name in columns}) == 1 and min(value["label"] + value["task"], default=0) >= 0


def _history(value: Any) -> bool:
    """For each task how many images of each class, or nothing where the run did not say."""
    if not isinstance(value, list) or not all(one is None or _list(_is(int))(one) for one in value):
        return False
    return len({len(one) for one in value if one}) <= 1


NEEDED: dict[str, Check] = {  # in every result since the first format
    "method": _is(str),
    "stream": _is(str),
    "split": lambda value: value in ("test", "validation"),
    "buffer": _is(int),
    "seed": _is(int),
    "class_il": _number,
    "task_il": _number,
    "class_il_matrix": _matrix,
    "task_il_matrix": _matrix,
    "seconds": lambda value: _dict(_number)(value) and "total" in value,
    "hardware": _is(dict),
    "command": _is(str),
}
FURTHER: dict[str, Check] = {  # right where they are there
    "variant": lambda value: value is None or isinstance(value, str),
    "forgetting": lambda value: value is None or _number(value),
    "average_incremental": lambda value: value is None or _number(value),
    "stages": _list(_dict(lambda one: _dict(_number)(one) and "class_il" in one)),
    "class_names": _list(_is(str)),
    "memory": _memory,
    "memory_history": _history,
    "settings": _is(dict),
}
NAMING = ("method", "stream", "buffer", "seed")  # what a run that is unfinished is known by
CONFIG: dict[str, Check] = {  # right where they are there
    "method": _is(str),
    "stream": _is(str),
    "buffer": _is(int),
    "seed": _is(int),
    "split": lambda value: value in ("test", "validation"),
    "variant": _or_none(_is(str)),
    "settings": _is(dict),
    "resolved": _is(dict),
    "tasks": _or_none(_is(int)),
    "order": _or_none(_list(_is(int))),
    "order_seed": _or_none(_is(int)),
    "keep_specialists": lambda value: isinstance(value, bool),
    "curves": _or_none(_is(int)),
}
LINE: dict[str, Check] = {
    "kind": _is(str),
    "task": _is(int),
    "stage": lambda value: value is None or isinstance(value, str),
    "epoch": _number,
    "class_il": _number,
    "task_il": _number,
    "class_il_tasks": _list(_number),
    "task_il_tasks": _list(_number),
}


def check_result(result: Any, path: Path) -> dict[str, Any]:
    """A result.json that tables and figures can rest on, else a `UserError` of one line."""
    if not isinstance(result, dict) or not _is(int)(result.get("format")):
        raise UserError(f"{path} is not a result of itl's: it has no format version")
    if not 1 <= result["format"] <= FORMAT:
        raise UserError(f"{path} has format {result['format']}, this itl reads 1 to {FORMAT}; use a newer itl")
    for name, check in (NEEDED | FURTHER).items():
        if name not in result and name in FURTHER:
            continue
        if not check(result.get(name)):
            raise UserError(f"{path} is damaged: '{name}' is missing or not what it should be; run it again")
    return result


def check_config(config: Any, path: Path, finished: bool) -> dict[str, Any]:
    """A config.json; that of an unfinished run must name it."""
    if not isinstance(config, dict) or not (finished or set(NAMING) <= config.keys()):
        raise UserError(f"{path} is not a run's configuration; is it the folder of a run?")
    for name, check in CONFIG.items():
        if name in config and not check(config[name]):
            raise UserError(f"{path} is damaged: '{name}' is not what it should be; run it again")
    return config


def read_config(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The config.json of a run's folder, whole; what it says is as a `Config` takes it."""
    return check_config(RunFolder(path).read("config.json"), Path(path) / "config.json", finished=False)


def check_predictions(arrays: dict[str, np.ndarray], classes: int | None, where: Path) -> dict[str, np.ndarray]:
    """predictions.npz: a row a test image, classes as whole numbers from 0 (-1: no class of its task is known)."""
    columns = {name: arrays.get(name) for name in ("label", "task", "class_il", "task_il", "confidence")}
    for name, column in columns.items():
        kinds = "f" if name == "confidence" else "iu"
        right = column is not None and column.ndim == 1 and column.dtype.kind in kinds and len(column) > 0
        if column is None or not right or len(column) != len(arrays["label"]):
            raise UserError(f"{where} is damaged: '{name}' is missing or not what it should be; run it again")
        if kinds == "iu" and not -1 <= int(column.min()) <= int(column.max()) < (classes or MOST_CLASSES):
            raise UserError(f"{where} is damaged: '{name}' holds no class's number; run it again")
    return arrays


def check_pictures(arrays: dict[str, np.ndarray], slots: int, rows: int, where: Path) -> dict[str, np.ndarray]:
    """pictures.npz: images, each with its slot of the memory or its row of the predictions."""
    for images, places, most in (("memory", "slot", slots), ("wrong", "row", rows)):
        pixels, at = arrays.get(images), arrays.get(places)
        right = pixels is not None and pixels.ndim == 4 and pixels.dtype == np.uint8 and pixels.shape[1] in (1, 3)
        placed = at is not None and at.ndim == 1 and at.dtype.kind in "iu"
        if pixels is None or at is None or not right or not placed or len(pixels) != len(at):
            raise UserError(f"{where} is damaged: '{images}' and '{places}' do not belong together; run it again")
        if len(at) and not 0 <= int(at.min()) <= int(at.max()) < most:
            raise UserError(f"{where} is damaged: '{places}' points nowhere; run it again")
    return arrays


def check_line(line: Any, where: str) -> None:
    """One line of metrics.jsonl."""
    for name, check in LINE.items():
        if not isinstance(line, dict) or name not in line or not check(line[name]):
            raise UserError(f"{where} is damaged: '{name}' is missing or not what it should be; run it again")
    short = line["kind"] in ("start", "curve") and min(len(line["class_il_tasks"]), len(line["task_il_tasks"]))
    if short is not False and short < line["task"]:
        raise UserError(f"{where} is damaged: it has fewer accuracies than tasks seen; run it again")
