"""The generalist step redone from kept specialists, with other settings and without training them again.

A specialist was kept at the point of Algorithm 1 where the memory has taken the task's samples and the half-pipe is
next. `learn` goes on from there: what is redone is the very step of the run, with the same settings the same expert.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from itl.callbacks.base import Callback, CallbackList
from itl.engine.stage import Diverged
from itl.errors import UserError
from itl.learner import Learner, load_learner
from itl.results import FORMAT, RunFolder
from itl.settings import check_name
from itl.streams import Stream

if TYPE_CHECKING:
    from itl.engine.stage import Stage


class Failed(UserError):
    """These settings made the generalist diverge; others may not."""


ALLOWED = (
    *("generalist", "half_pipe", "project", "tangent.", "projection."),
    *("augment.memory", "precision", "exact", "capture"),
)


def check(settings: Mapping[str, Any]) -> None:
    """Only what comes after the specialist can be chosen anew."""
    for key in settings:
        check_name(key)
        if not (key in ALLOWED or key.startswith(tuple(a for a in ALLOWED if a.endswith(".")))):
            choice = ", ".join(f"{a}*" if a.endswith(".") else a for a in ALLOWED)
            raise UserError(
                f"refine cannot change {key}, which affects the specialist or its memory. It can change {choice}."
            )


def kept(folder: RunFolder) -> list[int]:
    """The tasks (from 1) whose specialists a run has kept."""
    folder.read("config.json")  # is it a run at all?
    numbers = [int(path.parent.name.removeprefix("task-")) for path in folder.path.glob("specialists/task-*/CURRENT")]
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
    """Redo the generalist step of `task` (from 1) in the run's folder with `settings` on top of the run's own.

    Returns task, settings (those changed), stages (Class-IL and Task-IL of specialist, generalist and expert, over the
    tasks seen), class_il_tasks and task_il_tasks (the expert's, one a task seen) and seconds.
    """
    changed = dict(settings or {})
    check(changed)
    folder = RunFolder(run)
    if task not in kept(folder):
        raise UserError(
            f"{folder.path} has no specialist of task {task}. It has those of {', '.join(map(str, kept(folder)))}."
        )
    scores = _Scores(stream, task)
    everyone = CallbackList([scores, *callbacks])
    learner = load_learner(folder.specialist(task), device=device, settings=changed, callback=everyone)
    learner.timer.seconds.clear()  # those of the run
    begun = time.perf_counter()
    scores.add("specialist", learner)
    try:
        learner.learn(stream.tasks[task - 1])
    except UserError as error:
        if isinstance(error.__cause__, Diverged):
            raise Failed(str(error)) from error
        raise
    expert = scores.last
    return {
        "task": task,
        "settings": changed,
        "stages": scores.stages,
        "class_il_tasks": [one.class_il for one in expert.per_task],
        "task_il_tasks": [one.task_il for one in expert.per_task],
        "seconds": {
            **{name: round(value, 3) for name, value in learner.timer.seconds.items()},
            "total": round(time.perf_counter() - begun, 3),
        },
    }


def tried(
    run: str | os.PathLike[str], stream: Stream, task: int, settings: Mapping[str, Any], **how: Any
) -> dict[str, Any]:
    """The same as one try of several: settings that diverge leave their error, since others may do better."""
    try:
        return refine(run, stream, task, settings, **how)
    except Failed as error:
        return {"task": task, "settings": dict(settings), "error": str(error)}


class _Scores(Callback):
    """Evaluates what each stage reached, on the tasks seen."""

    def __init__(self, stream: Stream, task: int) -> None:
        self.tasks = stream.tasks[:task]
        self.stages: dict[str, dict[str, float]] = {}

    def on_stage_end(self, learner: Learner, stage: Stage) -> None:
        if stage.name != "projection":  # its end is the expert
            self.add(stage.name, learner)

    def on_task_end(self, learner: Learner) -> None:
        self.add("expert", learner)

    def add(self, stage: str, learner: Learner) -> None:
        self.last = learner.scores(self.tasks, [task.test for task in self.tasks])
        self.stages[stage] = {"class_il": self.last.class_il, "task_il": self.last.task_il}


def record(folder: RunFolder, command: str, tries: Sequence[dict[str, Any]], out: str | None = None) -> Path:
    """Write what was tried into `out`, or the run's folder as refine-001.json, -002, …; never over a file."""
    content = json.dumps({"format": FORMAT, "command": command, "tries": list(tries)}, indent=1) + "\n"
    path = _next(folder) if out is None else Path(out)
    try:
        with path.open("x") as file:
            file.write(content)
    except FileExistsError:
        raise UserError(f"{path} already exists. Choose another --out.") from None
    except OSError as error:
        raise UserError(f"Cannot write {path}: {error.strerror or error}. Choose another --out.") from None
    return path


def _next(folder: RunFolder) -> Path:
    numbers = [int(p.stem[7:]) for p in folder.path.glob("refine-*.json") if p.stem[7:].isdigit()]
    return folder.path / f"refine-{max(numbers, default=0) + 1:03d}.json"
