"""Turns what a learner tells into a run's record: curves within stages, scores at their ends, the final result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from itl import metrics
from itl.callbacks.base import Callback
from itl.results import FORMAT, RunFolder, environment, stage_scores
from itl.results.image_selection import balanced_subset, select_mistakes
from itl.streams import Images, Stream

if TYPE_CHECKING:
    from itl.engine.stage import Stage
    from itl.experiments.config import Config
    from itl.learner import Learner
    from itl.streams import Task

CURVE_IMAGES = 100  # of each task's test images, for the curves within a stage
CURVES = 16  # points at most of a specialist's curve, where the user asks for no number
SHARE = 0.01  # of a task's training may go into the points that nobody asked for
CHEAP = 8  # evaluations of an image for the time of a training step on it: large batches and no backward pass
EXPERT = "expert"
SECTIONS = ("specialist", "memory", "tangent", "projection", "evaluation")  # of a run's seconds, spent or not


class Recorder(Callback):
    """Evaluates and writes. Every line of metrics.jsonl says task, stage, epoch and, by `kind`, what was measured:

    `untrained` (before the first task), `start` (before the generalist's and the projection's first step: the
    half-pipe's drop) and `curve` (within a stage) on a fixed subset, `end` (a stage's end, whole test set) and `expert`
    (a task's end). Accuracies are percent, one a task of the stream (of `start` and `curve`: a task seen).
    """

    def __init__(self, config: Config, stream: Stream, folder: RunFolder, listener: Callback | None = None) -> None:
        self.config, self.stream, self.folder = config, stream, folder
        self.listener = listener or Callback()  # told of every line, so that a display need not evaluate again
        self.lines: list[dict[str, Any]] = []
        self.subset = [_subset(task.test) for task in stream]
        self.latest: metrics.Scores | None = None
        self.predictions: dict[str, np.ndarray] | None = None  # of the latest evaluation on all test images

    def start(self, learner: Learner) -> None:
        """Take up the record where the saved state knows of it; a new run measures the untrained network first."""
        known = int(learner.notes.get("lines", 0))
        self.lines = self.folder.truncate_lines(known)
        for line in self.lines:
            self.listener.on_record(line)
        if not self.lines:
            self._write(learner, "untrained", None, 0, self._evaluate(learner))

    def on_stage_start(self, learner: Learner, stage: Stage) -> None:
        """Where a stage after the specialist's sets out: the classifier may just have been redrawn."""
        if stage.name != "specialist" and learner.position[1] == 0 and self._points(learner, stage):
            with learner.timer.section("evaluation"):
                scores = self._evaluate(learner, self.subset[: len(learner.tasks)])
                self._write(learner, "start", stage.name, 0, scores)

    def on_round_end(self, learner: Learner, stage: Stage, epoch: int, loss: float) -> None:
        """A point of the curve: at most `curves` of them in the specialist's stage, half as many in the short ones."""
        done, rounds, points = learner.position[1], stage.planner.num_rounds, self._points(learner, stage)
        if points and (done % -(-rounds // points) == 0 or done == rounds):
            scores = self._evaluate(learner, self.subset[: len(learner.tasks)])
            self._write(learner, "curve", stage.name, epoch, scores, loss)
            self.latest = scores

    def _points(self, learner: Learner, stage: Stage) -> int:
        """How many points a stage's curve has: as asked, or what costs about a hundredth of the task's training."""
        points, tasks, settings = self.config.curves, len(learner.tasks), learner.settings.specialist
        if points is None:
            views = len(self.stream.tasks[tasks - 1].train) * settings.epochs
            views = min(views, (settings.steps or views) * settings.batch)
            affordable = SHARE * CHEAP * views * (settings.batch + settings.replay) / settings.batch
            points = min(CURVES, int(affordable / (2 * sum(len(part) for part in self.subset[:tasks]))))
        return points if stage.name == "specialist" else -(-points // 2)

    def on_stage_end(self, learner: Learner, stage: Stage) -> None:
        """The stage's own model on the whole test set."""
        self.latest = self._evaluate(learner)
        epoch = stage.planner.epochs_done(stage.planner.num_rounds - 1)
        self._write(learner, "end", stage.name, epoch, self.latest)

    def on_memory_update(self, learner: Learner, task: Task) -> None:
        """Some methods' model is whole only now (nearest means of what the memory holds)."""
        if learner.specialist.changes_model_at_task_end:
            self.latest = None

    def on_task_end(self, learner: Learner) -> None:
        """The expert f_t, which is what counts: the last stage's model, unless that left no weights to go on from."""
        settings = learner.settings
        if self.latest is None or (settings.generalist == "tangent" and not settings.projects):
            self.latest = self._evaluate(learner)
        if len(learner.tasks) == len(self.stream.tasks):  # before the line: a resumed run finds both or neither
            self.folder.write_arrays("predictions.npz", **self._final_predictions(learner))
        self._write(learner, EXPERT, EXPERT, 0, self.latest)

    def finish(self, learner: Learner) -> dict[str, Any]:
        """Write pictures.npz and result.json once the stream is learned."""
        self._pictures(learner, self._final_predictions(learner))
        result = self.result(learner)
        self.folder.write("result.json", result)
        return result

    def result(self, learner: Learner) -> dict[str, Any]:
        """What result.json holds, from the lines recorded so far."""
        experts = [line for line in self.lines if line["kind"] == EXPERT]
        whole = [line["class_il_tasks"] for line in experts]
        masked = [line["task_il_tasks"] for line in experts]
        untrained = next(line for line in self.lines if line["kind"] == "untrained")
        clock = dict.fromkeys(SECTIONS, 0.0) | learner.timer.seconds
        seconds = {name: round(value, 3) for name, value in clock.items()}
        slots = learner.memory.slots
        config = self.config
        return {
            "format": FORMAT,
            "method": config.method,
            "variant": config.variant,
            "stream": config.stream,
            "split": config.split,
            "buffer": config.buffer,
            "seed": config.seed,
            "class_il": metrics.average(whole),
            "task_il": metrics.average(masked),
            "class_il_matrix": whole,
            "task_il_matrix": masked,
            "forgetting": metrics.forgetting(whole),
            "forgetting_task_il": metrics.forgetting(masked),
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
        logits = learner.logits(Images.join(parts)).split([len(part) for part in parts])
        scores = [
            metrics.score(one, part.labels, task.classes) for one, part, task in zip(logits, parts, tasks, strict=True)
        ]
        if images is None:
            self.predictions = _predictions(logits, tasks)
        return metrics.Scores.of(scores, seen=len(learner.tasks))

    def _final_predictions(self, learner: Learner) -> dict[str, np.ndarray]:
        """The predictions that the last score was computed from; after a resume, those in the folder."""
        if self.predictions is None:
            self.predictions = self.folder.read_arrays("predictions.npz")
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
        if kind == EXPERT:
            held = learner.memory.labels
            line["memory"] = np.bincount(held, minlength=self.stream.classes).tolist()  # images of each class
        self.lines.append(line)
        self.folder.append(line)
        learner.notes["lines"] = len(self.lines)
        self.listener.on_record(line)

    def _pictures(self, learner: Learner, predicted: dict[str, np.ndarray]) -> None:
        """Some of the memory's images (with their slots) and some mistakes (with their rows of predictions.npz)."""
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
    """A fixed, evenly spread part of a task's test images."""
    count = min(CURVE_IMAGES, len(images))
    return images.take(torch.linspace(0, len(images) - 1, count).round().long())


def _predictions(logits: Sequence[torch.Tensor], tasks: Sequence[Task]) -> dict[str, np.ndarray]:
    """The columns of predictions.npz, one row per test image, from the logits `[n, classes]` of each task's images."""
    columns: dict[str, list[np.ndarray]] = {}
    for one, task in zip(logits, tasks, strict=True):
        for name, value in (
            ("label", task.test.labels),
            ("task", torch.full((len(one),), task.index)),
            ("class_il", one.argmax(1)),
            ("task_il", metrics.masked_predictions(one, task.classes)),
        ):
            columns.setdefault(name, []).append(value.numpy().astype(np.int16))
        columns.setdefault("confidence", []).append(one.softmax(1).amax(1).numpy().astype(np.float16))
    return {name: np.concatenate(parts) for name, parts in columns.items()}
