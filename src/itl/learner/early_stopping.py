"""Ends the training on a task when it stops improving (`specialist.patience`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from itl.engine.keyed_random import generator
from itl.learner.inference import class_il_choices, compute_logits
from itl.metrics import score
from itl.streams import Images

if TYPE_CHECKING:
    from itl.learner.learner import Learner

MIN_VALIDATION_IMAGES = 20  # fewer say too little about progress: the training loss decides instead
MAX_VALIDATION_IMAGES = 500  # of more, a random part is evaluated after each epoch
LOWER_RATE = 0.1  # factor of the learning rate after the first epochs without progress
LAST_SHARE = 0.25  # share of the planned epochs that are trained at the lower rate at least
LOSS_PROGRESS = 0.99  # a loss below this fraction of the best one is progress, if accuracy is equal or not measured


class ConvergenceMonitor:
    """Lowers the learning rate when a specialist makes no progress, and ends its training when it still makes none.

    The decision depends on saved numbers only, not on the time, so a resumed task ends at the same epoch.

    Args:
        learner: The learner, with the task's context.
        images: The task's validation images, or None.
        patience: Epochs without progress.
        epochs: Planned number of epochs, the maximum.
        summary: Updated with the measure, its best value, the number of epochs, and whether the training ended early.
    """

    recovers = False

    def __init__(
        self, learner: Learner, images: Images | None, patience: int, epochs: int, summary: dict[str, Any]
    ) -> None:
        self.learner, self.patience, self.epochs, self.summary = learner, patience, epochs, summary
        self.images = images if images is not None and len(images) >= MIN_VALIDATION_IMAGES else None
        if self.images is not None and len(self.images) > MAX_VALIDATION_IMAGES:
            rows = generator(*learner._key(), "validation").permutation(len(self.images))[:MAX_VALIDATION_IMAGES]
            self.images = self.images.take(torch.from_numpy(rows))
        self.accuracy, self.loss, self.waited, self.done = 0.0, torch.inf, 0, 0
        self.rate, self.stopped = 1.0, False

    def after_round(self, is_last: bool, loss: float) -> bool:
        """Compare the epoch with the best one; the weights stay as they are."""
        accuracy = 0.0
        if self.images is not None:
            accuracy, loss = self._evaluate(self.images)
        better = accuracy > self.accuracy or (self.accuracy == accuracy < 100 and loss < LOSS_PROGRESS * self.loss)
        self.accuracy, self.loss = max(self.accuracy, accuracy), min(self.loss, loss)
        self.done, self.waited = self.done + 1, 0 if better else self.waited + 1
        is_high = self.rate == 1.0
        if self.waited >= self.patience or (is_high and self.done >= (1 - LAST_SHARE) * self.epochs):
            self.stopped = not is_high and not is_last
            self.rate, self.waited = LOWER_RATE, 0
        self._update_summary()
        return False

    def go_back(self) -> None:
        """Never called: there are no earlier weights to return to."""

    def tensors(self) -> dict[str, Tensor]:
        """The counters."""
        counters = [self.accuracy, self.loss, self.rate, self.waited, self.done, float(self.stopped)]
        return {"counters": torch.tensor(counters, dtype=torch.float64)}

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Restore them."""
        self.accuracy, self.loss, self.rate, waited, done, stopped = tensors["counters"].tolist()
        self.waited, self.done, self.stopped = int(waited), int(done), bool(stopped)
        self._update_summary()

    def _evaluate(self, images: Images) -> tuple[float, float]:
        """Class-IL accuracy in percent and mean cross-entropy of the validation images."""
        logits = compute_logits(self.learner, images, remember=True)
        accuracy = score(logits, images.labels, self.learner.tasks[-1], class_il_choices(self.learner)).class_il
        return accuracy, float(F.cross_entropy(logits, images.labels))

    def _update_summary(self) -> None:
        self.summary |= {
            "measure": "training loss" if self.images is None else "validation accuracy",
            "best": self.loss if self.images is None else self.accuracy,
            "epochs": self.done,
            "stopped": self.stopped,
        }
