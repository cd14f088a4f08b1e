"""Repeats the generalist step of a run from its saved specialists, with other settings.

A specialist is saved after the memory was updated with the task's samples and before the half-pipe. Learning continues
from there, so the same settings give the same expert as the run.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from itl.atomic import create_file, flush_to_disk
from itl.callbacks.base import Callback, CallbackList
from itl.engine.stage import Diverged
from itl.errors import UserError
from itl.learner import Learner, load_learner
from itl.results import RECORD_FORMAT, RunFolder
from itl.settings import check_name
from itl.streams import Stream

if TYPE_CHECKING:
    from itl.engine.stage import Stage


class GeneralistDiverged(UserError):
    """The generalist diverged with these settings; other settings may work."""


# Settings that take effect after the specialist; a trailing dot stands for a whole group.
REFINABLE_SETTINGS = (
    *("generalist", "half_pipe", "half_pipe_scale", "project", "tangent.", "projection."),
    *("augment.memory", "augment.generalist", "precision", "exact", "capture"),
)
_SPECIALIST_NAME = re.compile(r"task-([0-9]{2,9})")
_ATTEMPTS_NAME = re.compile(r"refine-([0-9]{3,9})\.json")


def check_settings(settings: Mapping[str, Any]) -> None:
    """Check that `refine` can change all of these settings.

    Raises:
        UserError: If a setting is unknown, or if it affects the specialist or the memory.
    """
    groups = tuple(name for name in REFINABLE_SETTINGS if name.endswith("."))
    for key in settings:
        check_name(key)
        if not (key in REFINABLE_SETTINGS or key.startswith(groups)):
            allowed = ", ".join(f"{name}*" if name.endswith(".") else name for name in REFINABLE_SETTINGS)
            raise UserError(
                f"refine cannot change {key}, which affects the specialist or its memory. It can change {allowed}."
            )


def saved_specialists(folder: RunFolder) -> list[int]:
    """Numbers of the tasks (from 1) whose specialists a run has saved.

    Raises:
        UserError: If the folder contains no run or no specialists.
    """
    folder.read("config.json")  # raises if the folder contains no run
    names = (path.parent.name for path in folder.path.glob("specialists/task-*/CURRENT"))
    numbers = [int(found[1]) for found in map(_SPECIALIST_NAME.fullmatch, names) if found]
    if not numbers:
        raise UserError(f"{folder.path} contains no specialists. Run it again with --keep-specialists.")
    return sorted(numbers)


def refine(
    run: str | os.PathLike[str],
    stream: Stream,
    task: int,
    settings: Mapping[str, Any] | None = None,
    *,
    device: str = "auto",
    callbacks: Sequence[Callback] = (),
) -> dict[str, Any]:
    """Repeat the generalist step of one task of a run; the run itself is not changed.

    Args:
        run: Folder of a run with saved specialists.
        stream: Stream of the run.
        task: Number of the task, from 1.
        settings: Settings by dotted name that replace those of the run.
        device: Device to run on.
        callbacks: Callbacks of the learner.

    Returns:
        `task`; `settings`, as given; `stages`, the Class-IL and Task-IL accuracy of the specialist, the generalist and
        the expert over the tasks seen; `class_il_tasks` and `task_il_tasks`, the expert's accuracy on each task seen;
        `summaries` of the stages' optimization, where there are any; and `seconds`.

    Raises:
        GeneralistDiverged: If training diverges.
        UserError: If a setting cannot be changed or the run has no specialist of this task.
    """
    changed = dict(settings or {})
    check_settings(changed)
    folder = RunFolder(run)
    saved = saved_specialists(folder)
    if task not in saved:
        raise UserError(
            f"{folder.path} has no specialist of task {task}. It has those of {', '.join(map(str, saved))}."
        )
    if not 1 <= task <= len(stream.tasks):
        raise UserError(f"{folder.path} has a specialist of task {task}, but its stream has {len(stream.tasks)} tasks.")
    evaluator = _StageEvaluator(stream, task)
    callback = CallbackList([evaluator, *callbacks])
    learner = load_learner(folder.specialist(task), device=device, settings=changed, callback=callback)
    learner.timer.seconds.clear()  # the saved times are those of the run
    started = time.perf_counter()
    evaluator.evaluate("specialist", learner)
    try:
        learner.learn(stream.tasks[task - 1])
    except UserError as error:
        if isinstance(error.__cause__, Diverged):
            raise GeneralistDiverged(str(error)) from error
        raise
    expert = evaluator.latest
    return {
        "task": task,
        "settings": changed,
        "stages": evaluator.stages,
        "class_il_tasks": [scores.class_il for scores in expert.per_task],
        "task_il_tasks": [scores.task_il for scores in expert.per_task],
        **({"summaries": evaluator.summaries} if evaluator.summaries else {}),
        "seconds": {
            **{name: round(value, 3) for name, value in learner.timer.seconds.items()},
            "total": round(time.perf_counter() - started, 3),
        },
    }


def refine_or_error(
    run: str | os.PathLike[str], stream: Stream, task: int, settings: Mapping[str, Any], **options: Any
) -> dict[str, Any]:
    """Like `refine`, but returns `task`, `settings` and `error` if the generalist diverges."""
    try:
        return refine(run, stream, task, settings, **options)
    except GeneralistDiverged as error:
        return {"task": task, "settings": dict(settings), "error": str(error)}


class _StageEvaluator(Callback):
    """Evaluates the model after each stage on the tasks seen."""

    def __init__(self, stream: Stream, task: int) -> None:
        self.tasks = stream.tasks[:task]
        self.stages: dict[str, dict[str, float]] = {}
        self.summaries: dict[str, dict[str, Any]] = {}

    def on_stage_end(self, learner: Learner, stage: Stage) -> None:
        if stage.summary:
            self.summaries[stage.name] = stage.summary
        if stage.name != "projection":  # the projection's result is the expert, evaluated in on_task_end
            self.evaluate(stage.name, learner)

    def on_task_end(self, learner: Learner) -> None:
        self.evaluate("expert", learner)

    def evaluate(self, stage: str, learner: Learner) -> None:
        self.latest = learner.scores(self.tasks, [task.test for task in self.tasks])
        self.stages[stage] = {"class_il": self.latest.class_il, "task_il": self.latest.task_il}


def write_attempts(folder: RunFolder, command: str, attempts: Sequence[dict[str, Any]], out: str | None = None) -> Path:
    """Write the results of `refine` to a new file.

    Args:
        folder: Folder of the run.
        command: Command line that produced the results.
        attempts: Results of `refine`.
        out: File to write, or None for refine-001.json, refine-002.json, … in the folder of the run.

    Returns:
        Path of the file.

    Raises:
        UserError: If the file exists or cannot be written.
    """
    content = json.dumps({"format": RECORD_FORMAT, "command": command, "tries": list(attempts)}, indent=1) + "\n"
    path = _next_path(folder) if out is None else Path(out)
    try:
        with create_file(path) as file:
            file.write(content.encode("utf-8"))
        flush_to_disk(path.parent)
    except FileExistsError:
        raise UserError(f"{path} already exists. Choose another --out.") from None
    except OSError as error:
        raise UserError(f"Cannot write {path}: {error.strerror or error}. Choose another --out.") from None
    return path


def _next_path(folder: RunFolder) -> Path:
    names = (path.name for path in folder.path.glob("refine-*.json"))
    numbers = [int(found[1]) for found in map(_ATTEMPTS_NAME.fullmatch, names) if found]
    return folder.path / f"refine-{max(numbers, default=0) + 1:03d}.json"
