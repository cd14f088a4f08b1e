"""Records a run: curves during stages, scores after them, and the final result."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from itl import metrics
from itl.callbacks.base import Callback
from itl.errors import UserError
from itl.learner.inference import class_il_choices, task_scores
from itl.results import RECORD_FORMAT, RunFolder, environment, stage_scores
from itl.results.image_selection import balanced_subset, select_mistakes
from itl.results.validation import check_lines, check_predictions
from itl.streams import Images, Stream

if TYPE_CHECKING:
    from itl.engine.stage import Stage
    from itl.experiments.config import Config
    from itl.learner import Learner
    from itl.streams import Task

CURVE_IMAGES = 100  # test images of each task that curves are evaluated on
MAX_DEFAULT_POINTS = 16  # points of a specialist's curve, unless `curves` is given
MAX_CURVE_COST = 0.01  # of a task's training time, unless `curves` is given
EVALUATIONS_PER_STEP = 8  # images evaluated in the time of training on one: large batches, no backward pass
EXPERT = "expert"
# Sections that `seconds` always contains, even if they took no time.
TIMER_SECTIONS = ("specialist", "memory", "tangent", "projection", "evaluation")


class Recorder(Callback):
    """Evaluates a learner and writes the record of its run.

    Every line of metrics.jsonl has the task, the stage, the epoch and a `kind`: `untrained` (before the first task),
    `start` (before the first step of the generalist and of the projection, which shows the drop of the half-pipe),
    `curve` (during a stage), `end` (after a stage) or `expert` (after a task). `start` and `curve` are evaluated on a
    fixed subset of the test images of the tasks seen, the others on all test images of all tasks. Accuracies are in
    percent. The line at the end of a stage may have a `summary` of its optimization.

    Args:
        config: Configuration of the run.
        stream: Stream of the run.
        folder: Folder of the run.
        listener: Receives every line, so that a display need not evaluate again.
    """

    def __init__(self, config: Config, stream: Stream, folder: RunFolder, listener: Callback | None = None) -> None:
        self.config, self.stream, self.folder = config, stream, folder
        self.listener = listener or Callback()
        self.lines: list[dict[str, Any]] = []
        self.subset = [_subset(task.test) for task in stream]
        self.latest: metrics.Scores | None = None
        self.predictions: dict[str, np.ndarray] | None = None  # of the latest evaluation on all test images

    def start(self, learner: Learner) -> None:
        """Restore the lines that the saved learner knows of; a new run evaluates the untrained network first.

        Raises:
            UserError: The lines are damaged, or are not those of the saved learner.
        """
        known = learner.notes.get("lines", 0)
        if type(known) is not int or known < 0:
            raise UserError(f"{self.folder.model} is not the model of a run: its number of lines is {known!r:.40}")
        lines = self.folder.read_lines(known)
        if len(lines) == known:  # otherwise `truncate_lines` raises
            self._check_lines(lines, learner)
        self.lines = self.folder.truncate_lines(known)
        for line in self.lines:
            self.listener.on_record(line)
        if not self.lines:
            self._write(learner, "untrained", None, 0, self._evaluate(learner))

    def _check_lines(self, lines: list[dict[str, Any]], learner: Learner) -> None:
        """Raise a `UserError` if the lines are damaged or do not describe the tasks that the learner has finished."""
        path, tasks = self.folder.path / "metrics.jsonl", len(self.stream.tasks)
        check_lines(lines, path)
        complete = [line for line in lines if line["kind"] not in ("start", "curve")]
        accuracies = {len(line[name]) for line in complete for name in ("class_il_tasks", "task_il_tasks")}
        finished = len(learner.tasks) - (learner.position[0] != "done")
        experts = sum(line["kind"] == EXPERT for line in complete)
        started = not lines or lines[0]["kind"] == "untrained"
        if not started or experts != finished or not experts <= tasks or not accuracies <= {tasks}:
            raise UserError(f"{path} does not fit the saved model in {self.folder.model}; run it again")

    def on_stage_start(self, learner: Learner, stage: Stage) -> None:
        """Evaluate before the generalist and the projection, whose classifier may have been reinitialized."""
        if stage.name != "specialist" and learner.position[1] == 0 and self._points(learner, stage):
            with learner.timer.section("evaluation"):
                scores = self._evaluate(learner, self.subset[: len(learner.tasks)])
                self._write(learner, "start", stage.name, 0, scores)

    def on_round_end(self, learner: Learner, stage: Stage, epoch: int, loss: float) -> None:
        """Add a point to the curve, if it is due."""
        done, rounds, points = learner.position[1], stage.planner.num_rounds, self._points(learner, stage)
        if points and (done % -(-rounds // points) == 0 or done == rounds):
            scores = self._evaluate(learner, self.subset[: len(learner.tasks)])
            self._write(learner, "curve", stage.name, epoch, scores, loss if math.isfinite(loss) else None)
            self.latest = scores

    def _points(self, learner: Learner, stage: Stage) -> int:
        """Number of points of a stage's curve; stages after the specialist have half as many."""
        points, tasks, settings = self.config.curves, len(learner.tasks), learner.settings.specialist
        if points is None:
            trained = len(self.stream.tasks[tasks - 1].train) * settings.epochs
            trained = min(trained, (settings.steps or trained) * settings.batch)
            step_images = settings.batch + settings.replay
            affordable = MAX_CURVE_COST * EVALUATIONS_PER_STEP * trained * step_images / settings.batch
            points = min(MAX_DEFAULT_POINTS, int(affordable / (2 * sum(len(part) for part in self.subset[:tasks]))))
        return points if stage.name == "specialist" else -(-points // 2)

    def on_stage_end(self, learner: Learner, stage: Stage) -> None:
        """Evaluate the model of the stage on all test images."""
        self.latest = self._evaluate(learner)
        self._write(learner, "end", stage.name, stage.epochs, self.latest, summary=stage.summary)

    def on_memory_update(self, learner: Learner, task: Task) -> None:
        """Discard the scores of methods whose model depends on the memory, such as nearest class means."""
        if learner.specialist.changes_model_at_task_end:
            self.latest = None

    def on_task_end(self, learner: Learner) -> None:
        """Record the expert; evaluate it first unless the model of the last stage is the expert."""
        settings = learner.settings
        if self.latest is None or (settings.generalist == "tangent" and not settings.projects):
            self.latest = self._evaluate(learner)
        if len(learner.tasks) == len(self.stream.tasks):  # before the line: a resumed run finds both or neither
            self.folder.write_arrays("predictions.npz", **self._final_predictions(learner))
        self._write(learner, EXPERT, EXPERT, 0, self.latest)

    def finish(self, learner: Learner) -> dict[str, Any]:
        """Write pictures.npz and result.json once the stream is learned."""
        self._write_pictures(learner, self._final_predictions(learner))
        result = self.result(learner)
        self.folder.write("result.json", result)
        return result

    def result(self, learner: Learner) -> dict[str, Any]:
        """Contents of result.json, from the lines recorded so far."""
        experts = [line for line in self.lines if line["kind"] == EXPERT]
        whole = [line["class_il_tasks"] for line in experts]
        masked = [line["task_il_tasks"] for line in experts]
        untrained = next(line for line in self.lines if line["kind"] == "untrained")
        timer = dict.fromkeys(TIMER_SECTIONS, 0.0) | learner.timer.seconds
        seconds = {name: round(value, 3) for name, value in timer.items()}
        slots = learner.memory.slots
        config = self.config
        return {
            "format": RECORD_FORMAT,
            "method": config.method,
            "variant": config.variant,
            "stream": config.stream,
            "split": config.split,
            "buffer": config.buffer,
            "seed": config.seed,
            "class_il": metrics.average(whole),
            "task_il": metrics.average(masked),
            "class_il_over": learner.settings.class_il_over,
            "class_il_matrix": whole,
            "task_il_matrix": masked,
            **metrics.forgetting_measures(whole, masked),
            "backward_transfer": metrics.backward_transfer(whole),
            "backward_transfer_task_il": metrics.backward_transfer(masked),
            "forward_transfer_task_il": metrics.forward_transfer(masked, untrained["task_il_tasks"]),
            "average_incremental": metrics.average_incremental(whole),
            "average_incremental_task_il": metrics.average_incremental(masked),
            "stages": [stage_scores(self.lines, t + 1) for t in range(len(experts))],
            "class_names": list(self.stream.class_names),
            "tasks": [list(task.classes) for task in self.stream],
            "memory": {
                name: getattr(slots, name)[: slots.count].tolist() for name in ("label", "task", "row", "written")
            },
            "memory_history": [line.get("memory") for line in experts],
            "settings": learner.settings.model_dump(),
            "seconds": {**seconds, "total": round(sum(seconds.values()), 3)},
            "command": config.command,
            **environment(learner.engine.device),
        }

    def _evaluate(self, learner: Learner, images: list[Images] | None = None) -> metrics.Scores:
        """Scores on all test images of every task, or on the given images of the first tasks.

        An evaluation on all test images also sets `predictions`: scores and predictions come from one forward pass.
        """
        parts = images or [task.test for task in self.stream]
        tasks = self.stream.tasks[: len(parts)]
        logits = learner.logits(Images.join(parts), remember=True).split([len(part) for part in parts])
        if images is None:
            self.predictions = _predictions(logits, tasks, class_il_choices(learner))
        return task_scores(learner, logits, tasks, parts)

    def _final_predictions(self, learner: Learner) -> dict[str, np.ndarray]:
        """The predictions that the last score was computed from; after a resume, those in the folder."""
        if self.predictions is None and (arrays := self.folder.read_arrays("predictions.npz")) is not None:
            path = self.folder.path / "predictions.npz"
            self.predictions = check_predictions(arrays, self.stream.classes, path)
            if len(arrays["label"]) != sum(len(task.test) for task in self.stream):
                raise UserError(f"{path} does not have one row per test image; run it again")
        if self.predictions is None:  # a run that an older version has not finished
            self._evaluate(learner)
        assert self.predictions is not None
        return self.predictions

    def _write(
        self,
        learner: Learner,
        kind: str,
        stage: str | None,
        epoch: int,
        scores: metrics.Scores,
        loss: float | None = None,
        summary: Mapping[str, Any] | None = None,
    ) -> None:
        line: dict[str, Any] = {
            "kind": kind,
            "task": len(learner.tasks),
            "stage": stage,
            "epoch": epoch,
            "step": learner.memory.slots.step,
            "loss": loss,
            "class_il": scores.class_il,
            "task_il": scores.task_il,
            "class_il_tasks": [s.class_il for s in scores.per_task],
            "task_il_tasks": [s.task_il for s in scores.per_task],
        }
        if summary:
            line["summary"] = dict(summary)
        if kind == EXPERT:
            images_per_class = np.bincount(learner.memory.labels, minlength=self.stream.classes)
            line["memory"] = images_per_class.tolist()
        self.lines.append(line)
        self.folder.append(line)
        learner.notes["lines"] = len(self.lines)
        self.listener.on_record(line)

    def _write_pictures(self, learner: Learner, predicted: dict[str, np.ndarray]) -> None:
        """Write pictures.npz: memory images with their slots, and mistakes with their rows of predictions.npz."""
        slots = balanced_subset(learner.memory.labels)
        rows = select_mistakes(predicted["label"], predicted["class_il"], predicted["confidence"])
        test = Images.join([task.test for task in self.stream])
        self.folder.write_arrays(
            "pictures.npz",
            memory=learner.memory.gather(torch.from_numpy(slots)).cpu().numpy(),
            slot=slots,
            wrong=test.gather(torch.from_numpy(rows)).numpy(),
            row=rows,
        )


def _subset(images: Images) -> Images:
    """Fixed, evenly spaced subset of a task's test images."""
    count = min(CURVE_IMAGES, len(images))
    return images.take(torch.linspace(0, len(images) - 1, count).round().long())


def _predictions(
    logits: Sequence[torch.Tensor], tasks: Sequence[Task], choices: list[int] | None
) -> dict[str, np.ndarray]:
    """The columns of predictions.npz, one row per test image, from the logits `[n, classes]` of each task's images.

    `choices` are the classes among which Class-IL chooses; None for all.
    """
    columns: dict[str, list[np.ndarray]] = {}
    for one, task in zip(logits, tasks, strict=True):
        for name, value in (
            ("label", task.test.labels),
            ("task", torch.full((len(one),), task.index)),
            ("class_il", one.argmax(1) if choices is None else metrics.masked_predictions(one, choices)),
            ("task_il", metrics.masked_predictions(one, task.classes)),
        ):
            columns.setdefault(name, []).append(value.numpy().astype(np.int16))
        columns.setdefault("confidence", []).append(one.softmax(1).amax(1).numpy().astype(np.float16))
    return {name: np.concatenate(parts) for name, parts in columns.items()}
