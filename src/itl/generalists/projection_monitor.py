"""Watches a projection: compares the network with its teacher on held-out views of the memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from itl.augment import Draws
from itl.engine.keyed_random import generator
from itl.generalists.context import MemoryContext
from itl.generalists.round_planner import forward_in_chunks
from itl.nets import Net

HELD_OUT, MAX_VIEWS = 1024, 8  # held-out views in all, and of one image
FINAL_LOSS = 1.0  # points of accuracy below the best round at which the last round's weights are not kept
LOSS = 10.0  # points of accuracy that count as lost while the rate is still high
MAX_STUCK = 2  # rounds in a row without progress, far below the teacher, that count as a loss
RATE_FACTOR, MAX_LOSSES = 0.25, 4  # factor of the rate after a loss, and losses until the stage ends


class ProjectionMonitor:
    """Returns to the best weights at a lower rate when a projection loses accuracy; ends it after `MAX_LOSSES`.

    The best weights are those at the start until a round comes within `LOSS` points of the teacher, because a damaged
    network can be better than the random classifier at the start. A loss that is not finite counts as lost, too.

    Accuracy is that of the network in evaluation mode on views of memory images that are not used for training. No
    other images are used. At a high rate the network may be some points below its teacher, which it regains when the
    rate decays. So before the last round, only a loss of `LOSS` points counts: to the best round, or to the teacher
    without progress. After the last round, the best weights are kept unless the last ones are within `FINAL_LOSS`.

    Args:
        net: The network that is trained.
        teacher: Maps normalized images to the teacher's logits.
        context: What the generalist learned from.
        summary: Updated with the accuracies in percent, the rate and whether the stage ended early.
    """

    recovers = True

    def __init__(
        self, net: Net, teacher: Callable[[Tensor], Tensor], context: MemoryContext, summary: dict[str, Any]
    ) -> None:
        self.net, self.context, self.summary = net, context, summary
        self.rate, self.losses, self.stuck, self.stopped = 1.0, 0, 0, False
        memory, key = context.memory, (*context.key, "projection", "held out")
        rows = torch.from_numpy(generator(*key, "rows").permutation(len(memory))[:HELD_OUT])
        views = max(1, min(MAX_VIEWS, HELD_OUT // len(rows)))
        draws = [context.augment.draw(generator(*key, view), len(rows)) for view in range(views)]
        self.images = context.augment(memory.gather(rows.repeat(views)), Draws.cat(draws))
        labels = torch.from_numpy(memory.slots.label.copy())[rows]
        self.labels = context.engine.send(labels.repeat(views))
        self.teacher_accuracy = self._accuracy(teacher)
        self.accuracy = self.best_accuracy = self.peak = self._accuracy(self._logits)
        self.best = {name: tensor.clone() for name, tensor in net.state_dict().items()}
        self._update_summary()

    def after_round(self, is_last: bool, loss: float) -> bool:
        """Compare the network with the best weights so far and with the teacher; returns whether weights changed."""
        self.accuracy = self._accuracy(self._logits)
        is_near = self.accuracy >= self.teacher_accuracy - LOSS
        self.stuck = 0 if is_near or self.accuracy > self.peak else self.stuck + 1
        self.peak = max(self.peak, self.accuracy)
        limit = FINAL_LOSS if is_last else LOSS
        is_lost = self.accuracy < self.best_accuracy - limit or (self.stuck >= MAX_STUCK and not is_last)
        if is_lost:
            self.go_back()
        elif is_near and self.accuracy >= self.best_accuracy:
            self.best_accuracy = self.accuracy
            self.best = {name: tensor.clone() for name, tensor in self.net.state_dict().items()}
        self._update_summary()
        return is_lost

    def go_back(self) -> None:
        """Return to the best weights at a lower rate; end the stage after too many losses."""
        self.net.load_state_dict(self.best)
        self.accuracy = self.peak = self.best_accuracy
        self.rate, self.losses, self.stuck = self.rate * RATE_FACTOR, self.losses + 1, 0
        self.stopped = self.losses >= MAX_LOSSES
        self._update_summary()

    def tensors(self) -> dict[str, Tensor]:
        """Tensors to checkpoint: the best weights and the counters."""
        accuracies = [self.teacher_accuracy, self.accuracy, self.best_accuracy, self.peak]
        counters = torch.tensor(
            [*accuracies, self.rate, float(self.losses), float(self.stuck), float(self.stopped)], dtype=torch.float64
        )
        return {"counters": counters, **{f"best.{name}": tensor for name, tensor in self.best.items()}}

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Restore them."""
        self.best = {n.removeprefix("best."): t.clone() for n, t in tensors.items() if n.startswith("best.")}
        numbers = tensors["counters"].tolist()
        self.teacher_accuracy, self.accuracy, self.best_accuracy, self.peak, self.rate = numbers[:5]
        self.losses, self.stuck, self.stopped = int(numbers[5]), int(numbers[6]), bool(numbers[7])
        self._update_summary()

    def _logits(self, x: Tensor) -> Tensor:
        with self.context.engine.autocast():  # a teacher chooses its precision itself
            logits: Tensor = self.net(x)
        return logits

    @torch.no_grad()
    def _accuracy(self, model: Callable[[Tensor], Tensor]) -> float:
        """Accuracy on the held-out views in percent, with the network in evaluation mode."""
        training = self.net.training
        self.net.eval()
        logits = forward_in_chunks(lambda images: model(self.context.normalize(images)), self.images)
        self.net.train(training)
        return 100 * float((logits.argmax(1) == self.labels).double().mean())

    def _update_summary(self) -> None:
        self.summary |= {
            "teacher_accuracy": self.teacher_accuracy,
            "accuracy": self.accuracy,
            "best_accuracy": self.best_accuracy,
            "losses": self.losses,
            "rate": self.rate,
            "stopped": self.stopped,
        }
