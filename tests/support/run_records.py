"""Runs' folders made on the fly, as whole and as consistent as real ones, of any number of tasks and classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from itl import metrics
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
    """Write a run of `tasks` tasks.

    `stop`: cut short within that task (from 1); `level`: its Class-IL, percent; `pictures`: its images' side, pixels.
    """
    rng = np.random.default_rng([seed, tasks, buffer, *method.encode()])
    config: dict[str, Any] = {
        "stream": stream,
        "method": method,
        "buffer": buffer,
        "seed": seed,
        "settings": settings or {},
        "tasks": None,
        "order": None,
        "order_seed": None,
        "split": split,
        "variant": variant,
        "keep_specialists": False,
        "command": f"itl run --stream {stream} --method {method} --buffer {buffer} --seed {seed}",
        "resolved": {"generalist": "tangent", "specialist": {"lr": 0.01}, **(settings or {})},
        **{name: more.pop(name) for name in list(more) if name in ("tasks", "order", "order_seed")},
    }
    folder = RunFolder(path)
    folder.create(config)
    cut = [list(map(int, part)) for part in np.array_split(np.arange(classes), tasks)]
    lines: list[dict[str, Any]] = []

    def write(kind: str, task: int, stage: str | None, epoch: int, count: int, accuracy: float, **own: Any) -> None:
        whole = np.clip(accuracy + rng.normal(0, 2, count), 0, 100).round(3).tolist()
        masked = [min(100.0, value + 10) for value in whole]
        seen = max(1, min(task, count))
        line = {
            "kind": kind,
            "task": task,
            "stage": stage,
            "epoch": epoch,
            "step": len(lines),
            "loss": 0.5 if kind == "curve" else None,
            "class_il": sum(whole[:seen]) / seen,
            "task_il": sum(masked[:seen]) / seen,
            "class_il_tasks": whole,
            "task_il_tasks": masked,
            **own,
        }
        lines.append(line)
        folder.append(line)

    write("untrained", 0, None, 0, tasks, 5.0)
    for task in range(1, tasks + 1):
        for stage in stages:
            if stage != "specialist":
                write("start", task, stage, 0, task, 8.0)
            for point in range(points):
                write("curve", task, stage, point + 1, task, 30 + 40 * (point + 1) / points - 20 * task / tasks)
                if stop == task and stage == stages[-1] and point == points // 2:
                    return path
            write("end", task, stage, points, tasks, 70 - 20 * task / tasks)
        held = np.bincount(rng.choice(classes * task // tasks or 1, buffer), minlength=classes).tolist()
        final = level if level is not None and task == tasks else 72 - 20 * task / tasks
        write("expert", task, "expert", 0, tasks, final, memory=held)
    result = _result(config, lines, cut, rng, classes)
    if level is not None:
        result["class_il"] = level
    folder.write("result.json", {**result, **more})
    _predictions(folder, cut, each, rng, classes)
    if pictures:
        _pictures(folder, pictures, rng)
    return path


def _result(config: dict[str, Any], lines: list[dict[str, Any]], cut: list[list[int]], rng: Any, classes: int) -> Any:
    experts = [line for line in lines if line["kind"] == "expert"]
    whole, masked = ([line[f"{name}_tasks"] for line in experts] for name in ("class_il", "task_il"))
    held = config["buffer"]
    return {
        "format": 1,
        **{name: config[name] for name in ("method", "variant", "stream", "split", "buffer", "seed")},
        "class_il": metrics.average(whole),
        "task_il": metrics.average(masked),
        "class_il_matrix": whole,
        "task_il_matrix": masked,
        "forgetting": metrics.forgetting(whole),
        "forgetting_task_il": metrics.forgetting(masked),
        "average_incremental": metrics.average_incremental(whole),
        "stages": [stage_scores(lines, task + 1) for task in range(len(experts))],
        "class_names": [f"class {number}" for number in range(classes)],
        "tasks": cut,
        "memory": {
            "label": (np.arange(held) % classes).tolist(),
            "task": [next(t for t, part in enumerate(cut) if label in part) for label in np.arange(held) % classes],
            "row": list(range(held)),
            "written": rng.integers(0, 1000, held).tolist(),
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


def _predictions(folder: RunFolder, cut: list[list[int]], each: int, rng: Any, classes: int) -> None:
    label = np.repeat([c for part in cut for c in part], each)
    task = np.repeat([t for t, part in enumerate(cut) for _ in part], each)
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
