"""Checks of records: every field that tables and figures rely on. An error has one line per damaged file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from itl.errors import UserError
from itl.metrics import forgetting_measures
from itl.results.record import RECORD_FORMAT, RunFolder

MAX_CLASSES = 4096  # for records that do not name their classes
IDENTIFYING_FIELDS = ("method", "stream", "buffer", "seed")  # an unfinished run must have these in config.json

Split = Literal["test", "validation"]


def _square(matrix: list[list[float]]) -> list[list[float]]:
    if not matrix or any(len(row) != len(matrix) for row in matrix):
        raise ValueError("expected one row per task, each with an accuracy for every task")
    return matrix


def _has_total(seconds: dict[str, float]) -> dict[str, float]:
    if "total" not in seconds:
        raise ValueError("expected an entry 'total'")
    return seconds


def _memory_columns(memory: dict[str, list[int]]) -> dict[str, list[int]]:
    columns = ("label", "task", "row", "written")
    if not set(columns) <= memory.keys() or len({len(memory[name]) for name in columns}) != 1:
        raise ValueError("expected columns of one length, with one entry per slot")
    if min(memory["label"] + memory["task"], default=0) < 0:
        raise ValueError("expected labels and tasks from 0")
    return memory


def _class_counts(history: list[list[int] | None]) -> list[list[int] | None]:
    if len({len(counts) for counts in history if counts}) > 1:
        raise ValueError("expected the same number of classes after every task")
    return history


def _has_class_il(stages: list[dict[str, dict[str, float]]]) -> list[dict[str, dict[str, float]]]:
    if any("class_il" not in scores for task in stages for scores in task.values()):
        raise ValueError("expected Class-IL for every stage")
    return stages


Matrix = Annotated[list[list[float]], AfterValidator(_square)]


class _Record(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


class _Result(_Record):
    """result.json. Fields with a default are missing in some older records."""

    method: str
    stream: str
    split: Split
    buffer: int
    seed: int
    class_il: float
    task_il: float
    class_il_matrix: Matrix
    task_il_matrix: Matrix
    seconds: Annotated[dict[str, float], AfterValidator(_has_total)]
    hardware: dict[str, Any]
    command: str
    variant: str | None = None
    forgetting: float | None = None
    average_incremental: float | None = None
    stages: Annotated[list[dict[str, dict[str, float]]], AfterValidator(_has_class_il)] = []
    class_names: list[str] = []
    memory: Annotated[dict[str, list[int]], AfterValidator(_memory_columns)] = {}
    memory_history: Annotated[list[list[int] | None], AfterValidator(_class_counts)] = []
    settings: dict[str, Any] = {}


class _Config(_Record):
    """config.json. Every field may be missing in a finished run."""

    method: str = ""
    stream: str = ""
    buffer: int = 0
    seed: int = 0
    split: Split = "test"
    variant: str | None = None
    settings: dict[str, Any] = {}
    resolved: dict[str, Any] = {}
    tasks: int | None = None
    order: list[int] | None = None
    order_seed: int | None = None
    keep_specialists: bool = False
    curves: int | None = None


class _Line(_Record):
    """A line of metrics.jsonl."""

    kind: str
    task: int
    stage: str | None
    epoch: float
    class_il: float
    task_il: float
    class_il_tasks: list[float]
    task_il_tasks: list[float]
    memory: list[int] | None = None


def _check(model: type[_Record], value: Any, where: object) -> None:
    try:
        model.model_validate(value)
    except ValidationError as error:
        name = next(iter(error.errors()[0]["loc"]), "")
        raise UserError(f"{where} is damaged: '{name}' is missing or invalid; run it again") from None


def check_result(result: Any, path: Path) -> dict[str, Any]:
    """Return the content of a result.json, or raise a `UserError` of one line.

    Forgetting is computed again from the matrices: older versions stored `signed_forgetting` under its name.
    """
    if not isinstance(result, dict) or type(result.get("format")) is not int:
        raise UserError(f"{path} is not a result of itl: it has no format version")
    if not 1 <= result["format"] <= RECORD_FORMAT:
        raise UserError(
            f"{path} has format {result['format']}, but this itl reads 1 to {RECORD_FORMAT}; use a newer itl"
        )
    _check(_Result, result, path)
    return {**result, **forgetting_measures(result["class_il_matrix"], result["task_il_matrix"])}


def check_config(config: Any, path: Path, finished: bool) -> dict[str, Any]:
    """Return the content of a config.json; that of an unfinished run must identify the run."""
    if not isinstance(config, dict) or not (finished or set(IDENTIFYING_FIELDS) <= config.keys()):
        raise UserError(f"{path} is not the configuration of a run; is this a run folder?")
    _check(_Config, config, path)
    return config


def read_config(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read and check the config.json of a run folder. `Config.from_dict` accepts the returned dictionary."""
    return check_config(RunFolder(path).read("config.json"), Path(path) / "config.json", finished=False)


def check_lines(lines: list[Any], path: Path) -> None:
    """Check the lines of metrics.jsonl."""
    for number, line in enumerate(lines, 1):  # stops at the first error; there may be millions
        _check(_Line, line, f"{path}, line {number},")
        if line["kind"] in ("start", "curve"):
            measured = min(len(line["class_il_tasks"]), len(line["task_il_tasks"]))
            if measured < line["task"]:
                where = f"{path}, line {number},"
                raise UserError(f"{where} is damaged: it has fewer accuracies than tasks seen; run it again")


def check_predictions(arrays: dict[str, np.ndarray], classes: int | None, path: Path) -> dict[str, np.ndarray]:
    """Check predictions.npz: one row per test image, classes from 0 (-1: the model knows no class of the task)."""
    columns = {name: arrays.get(name) for name in ("label", "task", "class_il", "task_il", "confidence")}
    for name, column in columns.items():
        kinds = "f" if name == "confidence" else "iu"
        valid = column is not None and column.ndim == 1 and column.dtype.kind in kinds and len(column) > 0
        if column is None or not valid or len(column) != len(arrays["label"]):
            raise UserError(f"{path} is damaged: '{name}' is missing or invalid; run it again")
        if kinds == "iu" and not -1 <= int(column.min()) <= int(column.max()) < (classes or MAX_CLASSES):
            raise UserError(f"{path} is damaged: '{name}' has numbers outside the classes; run it again")
    return arrays


def check_pictures(arrays: dict[str, np.ndarray], slots: int, rows: int, path: Path) -> dict[str, np.ndarray]:
    """Check pictures.npz: images, each with its memory slot or its row of predictions.npz."""
    for images, indices, limit in (("memory", "slot", slots), ("wrong", "row", rows)):
        pixels, index = arrays.get(images), arrays.get(indices)
        valid = pixels is not None and pixels.ndim == 4 and pixels.dtype == np.uint8 and pixels.shape[1] in (1, 3)
        indexed = index is not None and index.ndim == 1 and index.dtype.kind in "iu"
        if pixels is None or index is None or not valid or not indexed or len(pixels) != len(index):
            raise UserError(f"{path} is damaged: '{images}' and '{indices}' do not match; run it again")
        if len(index) and not 0 <= int(index.min()) <= int(index.max()) < limit:
            raise UserError(f"{path} is damaged: '{indices}' is out of range; run it again")
    return arrays
