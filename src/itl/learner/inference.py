"""Logits of the model of a learner's current stage, and scores computed from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from itl import metrics
from itl.engine.concurrency import CAPTURE_GATE
from itl.learner.validation import check_shape
from itl.streams import Images, Task

if TYPE_CHECKING:
    from itl.learner.learner import Learner

BATCH_SIZE = {"cpu": 512, "cuda": 2048}  # images per forward pass; large batches are faster on a GPU


@torch.no_grad()
def compute_logits(
    learner: Learner, images: Images, remember: bool = False, familiarity: list[Tensor] | None = None
) -> Tensor:
    """Logits `[n, outputs]` of the images, on the CPU; `remember` keeps the features of a frozen trunk.

    If the specialist computes the images' familiarity, it is appended to the list.
    """
    if remember and learner.extractor is not None:
        images = Images(learner.extractor.add(images), images.labels)

    def forward(x: Tensor) -> Tensor:
        if familiarity is not None and learner._generalist is None and not learner.is_expert:
            scores = learner.specialist.familiarity(learner.net, x)
            familiarity.extend([] if scores is None else [scores.cpu()])
        return _forward(learner, x)

    return _map_batches(learner, images, forward)


@torch.no_grad()
def compute_features(learner: Learner, images: Images) -> Tensor:
    """Features `[n, d]` of the images, which the classifier takes, on the CPU."""

    def forward(x: Tensor) -> Tensor:
        with learner.engine.autocast():
            return learner.net.features(x).float()

    return _map_batches(learner, images, forward)


def _map_batches(learner: Learner, images: Images, function: Callable[[Tensor], Tensor]) -> Tensor:
    """What a function computes for batches of normalized images, joined on the CPU; the network does not train."""
    net, engine = learner.net, learner.engine
    training = net.training
    net.eval()
    out, batch = [], BATCH_SIZE[engine.device.type]
    for first in range(0, max(len(images), 1), batch):  # without images: one empty batch
        rows = torch.arange(first, min(first + batch, len(images)))
        with CAPTURE_GATE.eager(), engine.activate():
            out.append(function(learner.normalize(engine.send(images.gather(rows)))))
    net.train(training)
    return torch.cat(out).cpu()


def compute_outputs(learner: Learner, images: Images, remember: bool = False) -> tuple[Tensor, Tensor | None]:
    """Logits `[n, outputs]` and familiarity `[n]` (None if the specialist computes none) of the images, on the CPU.

    `remember` is that of `compute_logits`.
    """
    learner._check_built()
    check_shape("these images", images, learner.image_shape)
    familiarity: list[Tensor] = []
    logits = compute_logits(learner, images, remember, familiarity)
    return logits, torch.cat(familiarity) if familiarity else None


def class_il_choices(learner: Learner) -> list[int] | None:
    """Classes among which Class-IL chooses: those seen so far, or None for all outputs (`class_il_over`)."""
    if learner.settings.class_il_over == "all":
        return None
    return sorted({label for classes in learner.tasks for label in classes})


def task_scores(
    learner: Learner, logits: Sequence[Tensor], tasks: Sequence[Task], images: Sequence[Images]
) -> metrics.Scores:
    """Class-IL and Task-IL accuracy of each task, from the logits `[n, outputs]` of its images."""
    choices = class_il_choices(learner)
    scores = [
        metrics.score(one, part.labels, task.classes, choices)
        for one, part, task in zip(logits, images, tasks, strict=True)
    ]
    return metrics.Scores.of(scores, seen=len(learner.tasks))


def _forward(learner: Learner, x: Tensor) -> Tensor:
    if learner._generalist is not None:
        return learner._generalist.logits(x).float()
    with learner.engine.autocast():
        if learner.is_expert or not learner.tasks:  # a specialist has no model before its first task
            logits: Tensor = learner.net(x)
            return logits.float()
        return learner.specialist.evaluate_logits(learner.net, x).float()


def label_outputs(learner: Learner, outputs: np.ndarray) -> np.ndarray:
    """Labels of outputs `[n]`: class names if the learner has them, the number for an output without a class."""
    if learner.class_names is None:
        return outputs
    numbers = range(len(learner.class_names), learner.net.classifier.out_features)
    names = np.array([*learner.class_names, *map(str, numbers)])
    return np.asarray(names[outputs])
