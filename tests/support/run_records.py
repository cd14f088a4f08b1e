"""Writes run folders with random but consistent numbers, for any number of tasks and classes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from itl import metrics
from itl.errors import UserError
from itl.presets import settings_for
from itl.results import RunFolder, stage_scores
from itl.results.image_selection import balanced_subset, select_mistakes

STAGES = ("specialist", "tangent", "projection")


def fake_run(
    path: Path,
    *,
    method: str = "itl",
    stream: str = "seq-cifar10",
    buffer: int = 200,
    seed: int = 0,
    tasks: int = 5,
    classes: int = 10,
    points: int = 4,
    each: int = 5,
    split: str = "test",
    variant: str | None = None,
    settings: dict[str, Any] | None = None,
    stages: tuple[str, ...] = STAGES,
    stop: int | None = None,
    level: float | None = None,
    pictures: int = 0,
    **more: Any,
) -> Path:
    """Write a run folder and return its path.

    Args:
        path: The run folder.
        method, stream, buffer, seed: Options of the run.
        tasks, classes: How many there are.
        points: Measurements within each stage.
        each: Test images per class.
        split: "test" or "validation".
        variant: Name of the variant.
        settings: Settings that the user gave, by dotted name.
        stages: Stages of each task.
        stop: Task (from 1) in whose last stage the run was interrupted.
        level: Final Class-IL in percent.
        pictures: Side of the recorded images in pixels; 0: none are recorded.
        more: Task options (`order`, `order_seed`), or other fields of result.json.
    """
    rng = np.random.default_rng([seed, tasks, buffer, *method.encode()])
    options = {name: more.pop(name) for name in list(more) if name in ("tasks", "order", "order_seed")}
    own = {"stream": stream, "method": method, "buffer": buffer, "seed": seed, "split": split, "variant": variant}
    config = _config(own, settings or {}, options)
    folder = RunFolder(path)
    folder.create(config)
    task_classes = [list(map(int, part)) for part in np.array_split(np.arange(classes), tasks)]
    lines: list[dict[str, Any]] = []

    def write(kind: str, task: int, stage: str | None, epoch: int, count: int, accuracy: float, **extra: Any) -> None:
        lines.append(_line(kind, task, stage, epoch, np.clip(accuracy + rng.normal(0, 2, count), 0, 100), extra))
        lines[-1]["step"] = len(lines) - 1
        folder.append(lines[-1])

    write("untrained", 0, None, 0, tasks, 5.0)
    for task in range(1, tasks + 1):
        for stage in stages:
            interrupted = stop == task and stage == stages[-1]
            _write_stage(write, task, tasks, stage, points, interrupted)
            if interrupted:
                return path
        class_counts = np.bincount(rng.choice(classes * task // tasks or 1, buffer), minlength=classes).tolist()
        final = level if level is not None and task == tasks else 72 - 20 * task / tasks
        write("expert", task, "expert", 0, tasks, final, memory=class_counts)
    result = _result(config, lines, task_classes, rng, classes)
    if level is not None:
        result["class_il"] = level
    folder.write("result.json", {**result, **more})
    _predictions(folder, task_classes, each, rng, classes)
    if pictures:
        _pictures(folder, pictures, rng)
    return path


def _config(own: dict[str, Any], settings: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    command = f"itl run --stream {own['stream']} --method {own['method']} --buffer {own['buffer']} --seed {own['seed']}"
    return {
        **own,
        "settings": settings,
        "tasks": None,
        "order": None,
        "order_seed": None,
        "keep_specialists": False,
        "command": command,
        "resolved": _resolved(own, settings),
        **options,
    }


def _resolved(own: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """All settings; only those given if the method or one of them does not exist."""
    try:
        return settings_for(own["method"], own["stream"], own["buffer"], settings).model_dump()
    except UserError:
        return {"generalist": "tangent", "specialist": {"lr": 0.01}, **settings}


def _write_stage(write: Callable[..., None], task: int, tasks: int, stage: str, points: int, interrupted: bool) -> None:
    if stage != "specialist":
        write("start", task, stage, 0, task, 8.0)
    for point in range(points // 2 + 1 if interrupted else points):
        write("curve", task, stage, point + 1, task, 30 + 40 * (point + 1) / points - 20 * task / tasks)
    if not interrupted:
        write("end", task, stage, points, tasks, 70 - 20 * task / tasks)


def _line(
    kind: str, task: int, stage: str | None, epoch: int, scores: np.ndarray, extra: dict[str, Any]
) -> dict[str, Any]:
    accuracies = scores.round(3).tolist()
    masked = [min(100.0, value + 10) for value in accuracies]
    seen = max(1, min(task, len(accuracies)))
    return {
        "kind": kind,
        "task": task,
        "stage": stage,
        "epoch": epoch,
        "loss": 0.5 if kind == "curve" else None,
        "class_il": sum(accuracies[:seen]) / seen,
        "task_il": sum(masked[:seen]) / seen,
        "class_il_tasks": accuracies,
        "task_il_tasks": masked,
        **extra,
    }


def _result(
    config: dict[str, Any], lines: list[dict[str, Any]], task_classes: list[list[int]], rng: Any, classes: int
) -> Any:
    experts = [line for line in lines if line["kind"] == "expert"]
    class_il, task_il = ([line[f"{name}_tasks"] for line in experts] for name in ("class_il", "task_il"))
    size = config["buffer"]
    return {
        "format": 1,
        **{name: config[name] for name in ("method", "variant", "stream", "split", "buffer", "seed")},
        "class_il": metrics.average(class_il),
        "task_il": metrics.average(task_il),
        "class_il_matrix": class_il,
        "task_il_matrix": task_il,
        "forgetting": metrics.forgetting(class_il),
        "forgetting_task_il": metrics.forgetting(task_il),
        "average_incremental": metrics.average_incremental(class_il),
        "stages": [stage_scores(lines, task + 1) for task in range(len(experts))],
        "class_names": [f"class {number}" for number in range(classes)],
        "tasks": task_classes,
        "memory": {
            "label": (np.arange(size) % classes).tolist(),
            "task": [
                next(t for t, classes_of_task in enumerate(task_classes) if label in classes_of_task)
                for label in np.arange(size) % classes
            ],
            "row": list(range(size)),
            "written": rng.integers(0, 1000, size).tolist(),
        },
        "memory_history": [line["memory"] for line in experts],
        "settings": config["resolved"],
        "seconds": {
            "specialist": 100.0,
            "memory": 0.5,
            "tangent": 4.0,
            "projection": 5.0,
            "evaluation": 3.5,
            "total": 113.0,
        },
        "command": config["command"],
        "hardware": {"device": "cuda", "cpus": 8, "threads": 4, "gpu": "NVIDIA H200"},
        "versions": {"itl": "0.1.0", "python": "3.11.2", "torch": "2.13.0", "numpy": "2.4.6"},
    }


def _predictions(folder: RunFolder, task_classes: list[list[int]], each: int, rng: Any, classes: int) -> None:
    label = np.repeat([label_of_class for classes_of_task in task_classes for label_of_class in classes_of_task], each)
    task = np.repeat([t for t, classes_of_task in enumerate(task_classes) for _ in classes_of_task], each)
    guess = np.where(rng.random(len(label)) < 0.7, label, rng.integers(0, classes, len(label)))
    folder.write_arrays(
        "predictions.npz",
        label=label.astype(np.int16),
        task=task.astype(np.int16),
        class_il=guess.astype(np.int16),
        task_il=label.astype(np.int16),
        confidence=rng.random(len(label)).astype(np.float16),
    )


def _pictures(folder: RunFolder, side: int, rng: Any) -> None:
    label = np.array(folder.read("result.json")["memory"]["label"])
    predicted = folder.read_arrays("predictions.npz") or {}
    slot = balanced_subset(label)
    row = select_mistakes(predicted["label"], predicted["class_il"], predicted["confidence"])
    images = rng.integers(0, 256, (len(slot) + len(row), 3, side, side)).astype(np.uint8)
    folder.write_arrays("pictures.npz", memory=images[: len(slot)], slot=slot, wrong=images[len(slot) :], row=row)
