"""Whether a record is whole: everything that tables and figures rest on is there and of its kind."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from itl.errors import UserError
from itl.results.record import FORMAT

Check = Callable[[Any], bool]


def _is(kind: type | tuple[type, ...]) -> Check:
    return lambda value: isinstance(value, kind) and not isinstance(value, bool)


def _number(value: Any) -> bool:
    return _is((int, float))(value) and math.isfinite(value)


def _list(of: Check) -> Check:
    return lambda value: isinstance(value, list) and all(map(of, value))


def _dict(of: Check) -> Check:
    return lambda value: isinstance(value, dict) and all(map(of, value.values()))


def _matrix(value: Any) -> bool:
    """A row a task, each with at least as many accuracies as there are rows."""
    return _list(_list(_number))(value) and bool(value) and all(len(row) >= len(value) for row in value)


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
    "split": _is(str),
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


def check_line(line: Any, where: str) -> None:
    """One line of metrics.jsonl."""
    for name, check in LINE.items():
        if not isinstance(line, dict) or not check(line.get(name)):
            raise UserError(f"{where} is damaged: '{name}' is missing or not what it should be; run it again")
    short = line["kind"] in ("start", "curve") and min(len(line["class_il_tasks"]), len(line["task_il_tasks"]))
    if short is not False and short < line["task"]:
        raise UserError(f"{where} is damaged: it has fewer accuracies than tasks seen; run it again")
