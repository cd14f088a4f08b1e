"""Candidates collected while a task is trained and merged into the memory at its end (the paper's appendix).

This is weighted reservoir sampling without a fixed number of slots. Each time a sample is offered, it draws an
exponential arrival time with the sample's rate, and it keeps its earliest one. The k samples with the earliest arrival
times are drawn without replacement, weighted by rate (Efraimidis & Spirakis, 2006: their keys u^(1/w) are exp(-time));
with equal rates this is a plain reservoir. A sample is offered again in each epoch. Its earliest arrival time then has
the sum of its rates, so repeated offers never give it two slots.

The stored key is 1 / (1 + time), which neither overflows nor reaches 0 for any finite time; 0 marks a sample that was
never offered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from itl.engine.device import Engine
from itl.errors import UserError
from itl.memory.class_balance import merge_by_class
from itl.memory.model_outputs import ModelOutputs
from itl.memory.slots import Slots

Inputs = dict[str, np.ndarray]


@dataclass(frozen=True)
class PolicyOptions:
    """Options of the policies that collect candidates.

    Attributes:
        temperature: Softmax temperature of the entropy policy.
        fraction: Fraction of a task in its coreset.
        every: Number of epochs between two coresets.
        alpha: Weight of the logit distance in the loss whose gradient the gcr policy matches.
        beta: Weight of the cross-entropy in that loss.
    """

    temperature: float = 1.0
    fraction: float = 0.5
    every: int = 5
    alpha: float = 0.0
    beta: float = 1.0


class Candidates:
    """Candidates of one task: for each sample its earliest arrival time, and its weight and logits at that time.

    A training step changes these tensors on the device, with static shapes. Subclasses override `rate` (sampling
    weights), `draw_inputs` (which samples are offered) or `select` (the choice at the task's end).

    Args:
        count: Number of samples of the task.
        num_outputs: Columns of the stored logits, or None if the memory stores no logits.
        options: Options of the policy.
        engine: Device and precision.

    Attributes:
        keys: float64 `[count]`; larger means earlier, 0 means never offered.
        weights: float32 `[count]`.
        logits: float32 `[count, num_outputs]`, or None.
    """

    needs_logits: ClassVar[bool] = False
    """Whether `rate` uses the specialist's logits."""

    def __init__(self, count: int, num_outputs: int | None, options: PolicyOptions, engine: Engine) -> None:
        self.options, self.engine = options, engine
        self.keys = torch.zeros(count, dtype=torch.float64, device=engine.device)
        self.weights = torch.ones(count, device=engine.device)
        self.logits = None if num_outputs is None else torch.zeros(count, num_outputs, device=engine.device)

    def prepare_epoch(self, epoch: int, labels: np.ndarray, outputs: ModelOutputs) -> np.ndarray | None:
        """Compute what epoch `epoch` (from 0) needs from the current network, without changing any state."""
        return None

    def commit_epoch(self, prepared: np.ndarray | None) -> None:
        """Store the result of `prepare_epoch` once the epoch is trained."""

    def draw_inputs(self, rng: np.random.Generator, rows: np.ndarray, prepared: np.ndarray | None) -> Inputs:
        """Draw an epoch's step inputs for the offered samples `rows` `[n]`; each array is `[n]`."""
        return {"row": rows, "clock": rng.exponential(size=len(rows))}

    def rate(self, logits: Tensor | None, batch: dict[str, Tensor]) -> Tensor:
        """Sampling weight of each sample of a batch `[n]`."""
        return torch.ones_like(batch["clock"])

    @torch.no_grad()
    def observe(self, logits: Tensor | None, batch: dict[str, Tensor]) -> None:
        """Offer a batch to the reservoir.

        Args:
            logits: The specialist's logits `[n, classes]`, if it provides them.
            batch: The step's part of `draw_inputs`, and the labels `y` `[n]`.

        Raises:
            UserError: The policy or the memory needs logits and there are none.
        """
        if logits is None and (self.needs_logits or self.logits is not None):
            raise UserError(
                "this memory policy needs the specialist's logits, but the specialist does not provide them; "
                "set memory.policy=reservoir or stratified"
            )
        row, key = batch["row"], 1 / (1 + batch["clock"] / self.rate(logits, batch))
        earlier = key > self.keys.index_select(0, row)
        _update_rows(self.keys, row, key, earlier)
        if "weight" in batch:
            _update_rows(self.weights, row, batch["weight"].float(), earlier)
        if self.logits is not None and logits is not None:
            _update_rows(self.logits, row, logits.float(), earlier)

    def ranking(self) -> np.ndarray:
        """The offered rows of the task, earliest arrival time first.

        The first k rows of a class are a reservoir of size k over this class alone.
        """
        keys = self.keys.cpu().numpy()
        order = np.argsort(-keys, kind="stable")
        return order[keys[order] > 0]

    def select(
        self,
        slots: Slots,
        labels: np.ndarray,
        rng: np.random.Generator,
        outputs: ModelOutputs,
        stored_logits: Tensor | None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Select at the task's end: the slots to overwrite `[k]` and the task's rows to write there `[k]`.

        Args:
            slots: Metadata of the memory before the task.
            labels: Labels of the task's samples `[n]`.
            rng: Generator of all draws.
            outputs: Outputs of the current network.
            stored_logits: The memory's logits `[size + 1, classes]`, or None.
        """
        return merge_by_class(slots, labels, rng, self.ranking())

    def tensors(self) -> dict[str, Tensor]:
        """Tensors to checkpoint."""
        out = {"keys": self.keys, "weights": self.weights}
        return out if self.logits is None else {**out, "logits": self.logits}

    def restore(self, saved: dict[str, Tensor]) -> None:
        """Restore the tensors of a checkpoint.

        Raises:
            UserError: The checkpoint belongs to a task of another size.
        """
        for name, tensor in self.tensors().items():
            if saved[name].shape != tensor.shape:
                raise UserError("this learner was saved in the middle of another task; learn that task first")
            tensor.copy_(saved[name])


def _update_rows(tensor: Tensor, row: Tensor, new: Tensor, condition: Tensor) -> None:
    """Set tensor[row] = new where `condition` `[n]` holds; all rows are different."""
    mask = condition if new.ndim == 1 else condition[:, None]
    tensor.index_copy_(0, row, torch.where(mask, new.to(tensor.dtype), tensor.index_select(0, row)))
