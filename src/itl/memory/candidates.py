"""Candidates gathered while a task is trained, merged into the memory at its end (the paper's appendix).

A reservoir without slots: every sample offered draws an exponential clock, divided by its rate, and keeps its earliest.
The k samples with the earliest clocks are a weighted sample without replacement, by rate (Efraimidis & Spirakis, 2006:
their keys u^(1/w) are exp(-clock)); at equal rates a plain reservoir's. Offered again with each epoch, a sample's
earliest clock is that of its rates' sum: it competes with all its chances for one place.

What is kept is 1 / (1 + clock), which no clock takes to 0 or beyond what a float holds; 0 is one that never struck.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from itl.engine.device import Engine
from itl.errors import UserError
from itl.memory.model_outputs import ModelOutputs
from itl.memory.policies.stratified import merge
from itl.memory.slots import Slots

Inputs = dict[str, np.ndarray]


@dataclass(frozen=True)
class PolicyOptions:
    """What the policies that gather can be told.

    Entropy's temperature; the coreset's fraction and how often; α and β of the loss whose gradient GCR goes by.
    """

    temperature: float = 1.0
    fraction: float = 0.5
    every: int = 5
    alpha: float = 0.0
    beta: float = 1.0


class Candidates:
    """One task's candidates: for each of its `count` samples the earliest clock, and what was true when it struck.

    `keys` `[count]` (the larger the earlier, 0: never offered), `weights` `[count]`, `logits` `[count, width]` where
    they are stored. A step changes these on the device, with static shapes.
    """

    needs_logits: ClassVar[bool] = False

    def __init__(self, count: int, width: int | None, options: PolicyOptions, engine: Engine) -> None:
        self.options, self.engine = options, engine
        self.keys = torch.zeros(count, dtype=torch.float64, device=engine.device)
        self.weights = torch.ones(count, device=engine.device)
        self.logits = None if width is None else torch.zeros(count, width, device=engine.device)

    # ---------------------------------------------------------------- while an epoch is planned

    def foresee(self, epoch: int, labels: np.ndarray, sight: ModelOutputs) -> np.ndarray | None:
        """What epoch `epoch` (from 0) needs to know of the network before it begins; nothing here is changed yet."""
        return None

    def settle(self, foreseen: np.ndarray | None) -> None:
        """The epoch is trained: what was foreseen for it holds from now on."""

    def draw(self, rng: np.random.Generator, rows: np.ndarray, foreseen: np.ndarray | None) -> Inputs:
        """A step's inputs for the samples offered, each `[n]`: here, their clocks."""
        return {"row": rows, "clock": rng.exponential(size=len(rows))}

    # ---------------------------------------------------------------- in the step

    def rate(self, logits: Tensor | None, batch: dict[str, Tensor]) -> Tensor:
        """How fast each sample's clock runs `[n]`: its weight in the sampling."""
        return torch.ones_like(batch["clock"])

    @torch.no_grad()
    def observe(self, logits: Tensor | None, batch: dict[str, Tensor]) -> None:
        """Offer a batch, of which the specialist said `logits` `[n, classes]`."""
        if logits is None and (self.needs_logits or self.logits is not None):
            raise UserError(
                "this memory looks at the specialist's predictions, and the specialist leaves none; "
                "set memory.policy=reservoir or stratified"
            )
        row, key = batch["row"], 1 / (1 + batch["clock"] / self.rate(logits, batch))
        earlier = key > self.keys.index_select(0, row)
        _keep(self.keys, row, key, earlier)
        if "weight" in batch:
            _keep(self.weights, row, batch["weight"].float(), earlier)
        if self.logits is not None and logits is not None:
            _keep(self.logits, row, logits.float(), earlier)

    # ---------------------------------------------------------------- at the task's end, and between

    def ranked(self) -> np.ndarray:
        """The rows of the task that were offered, earliest clock first.

        A memory takes as many of each class as its share is: the first k of a class are the reservoir of size k that
        saw this class alone.
        """
        keys = self.keys.cpu().numpy()
        order = np.argsort(-keys, kind="stable")
        return order[keys[order] > 0]

    def choose(
        self, slots: Slots, labels: np.ndarray, rng: np.random.Generator, sight: ModelOutputs, stored: Tensor | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Slots to overwrite and the rows of the task put there; `stored` are the logits in memory, where kept."""
        return merge(slots, labels, rng, self.ranked())

    def tensors(self) -> dict[str, Tensor]:
        """All that must be saved to gather on."""
        out = {"keys": self.keys, "weights": self.weights}
        return out if self.logits is None else {**out, "logits": self.logits}

    def restore(self, saved: dict[str, Tensor]) -> None:
        """Go on from what `tensors` gave."""
        for name, tensor in self.tensors().items():
            if saved[name].shape != tensor.shape:
                raise UserError("the candidates saved with this learner belong to another task; learn that one first")
            tensor.copy_(saved[name])


def _keep(held: Tensor, row: Tensor, new: Tensor, where: Tensor) -> None:
    """held[row] = new where asked; rows of a batch are all different."""
    mask = where if new.ndim == 1 else where[:, None]
    held.index_copy_(0, row, torch.where(mask, new.to(held.dtype), held.index_select(0, row)))
