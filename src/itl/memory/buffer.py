"""The buffer itself: images and stored logits on the device, what is known of them on the CPU."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from itl.engine.device import Engine
from itl.engine.pool import ImageSource
from itl.memory.candidates import Candidates, PolicyOptions
from itl.memory.model_outputs import ModelOutputs
from itl.memory.online_selection import OnlineSelector
from itl.memory.policies.stratified import merge
from itl.memory.registry import find
from itl.memory.slots import Slots

BESIDE = ("logits", "scores", "edits")  # what may lie beside an image, each `[size + 1, ...]` on the device


class Memory:
    """A fixed-size buffer of raw uint8 images `[size, channels, height, width]`, augmented anew at every draw.

    One slot more than `size` exists on the device: the dummy, which takes the writes that go nowhere, so that a step's
    writes have a static shape. `logits` `[size + 1, classes]` is there for methods that store them; `weighted` says
    whether what the policy weighs counts so in the loss.
    """

    def __init__(
        self,
        size: int,
        policy: str,
        shape: tuple[int, int, int],
        logits: int | None,
        engine: Engine,
        *,
        weighted: bool | None = None,
        options: PolicyOptions | None = None,
    ) -> None:
        self.policy, self.engine, self.options = find(policy), engine, options or PolicyOptions()
        self.weighted = self.policy.weighs if weighted is None else weighted
        self.slots = Slots.empty(size)
        self.candidates: Candidates | None = None
        self.live: OnlineSelector | None = None
        self.pixels = torch.zeros((size + 1, *shape), dtype=torch.uint8, device=engine.device)
        self.logits: Tensor | None = None
        if logits is not None:
            self.logits = torch.zeros((size + 1, logits), device=engine.device)
        self.edits: Tensor | None = None  # by how much a method has moved each image, in the network's units
        self.scores: Tensor | None = None  # what a live policy knows of each image
        if self.policy.live is not None:
            self.scores = torch.zeros(size + 1, dtype=torch.float64, device=engine.device)

    def __len__(self) -> int:
        return self.slots.count

    @property
    def size(self) -> int:
        """How many images it can hold."""
        return self.slots.size

    @property
    def labels(self) -> np.ndarray:
        """The classes of the images held, `[len]`."""
        return self.slots.label[: self.slots.count]

    def gather(self, index: Tensor) -> Tensor:
        """Images `[k, channels, height, width]` of slots `[k]`."""
        return self.pixels.index_select(0, self.engine.send(index))

    def put(self, targets: np.ndarray, pool: ImageSource, rows: np.ndarray) -> None:
        """Copy the task's `rows` into slots `targets` (all different). Their description is the caller's business."""
        if len(targets):
            where = self.engine.send(torch.from_numpy(targets))
            self.pixels.index_copy_(0, where, pool.gather(torch.from_numpy(rows)))

    def unedit(self, where: Tensor) -> None:
        """Forget by how much the images in slots `where` were moved: others have come in their place."""
        if self.edits is not None:
            self.edits.index_fill_(0, where, 0.0)

    def begin_task(self, count: int, saved: dict[str, Tensor]) -> None:
        """Make room for the candidates among a task's `count` samples, or go on with those `saved` half-way."""
        if self.policy.gathers is not None:
            width = None if self.logits is None else self.logits.shape[1]
            self.candidates = self.policy.gathers(count, width, self.options, self.engine)
            if saved:
                self.candidates.restore(saved)
        if self.policy.live is not None and self.scores is not None:
            self.live = self.policy.live(self.slots, self.scores, self.engine)

    def end_task(
        self,
        pool: ImageSource,
        labels: np.ndarray,
        task: int,
        width: int,
        rng: np.random.Generator,
        sight: ModelOutputs,
    ) -> None:
        """B_t ← B_{t-1} ⊕ D_t for the policies that choose at the task's end."""
        if self.policy.at_end is not None:
            targets, rows = self.policy.at_end(self.slots, labels, rng)
        elif self.policy.ranks is not None:
            targets, rows = merge(self.slots, labels, rng, self.policy.ranks(labels, self.size, sight), last_first=True)
        elif self.candidates is not None:
            targets, rows = self.candidates.choose(self.slots, labels, rng, sight, self.logits)
        else:
            return
        self.put(targets, pool, rows)
        self.unedit(self.engine.send(torch.from_numpy(targets)))
        self.slots.write(targets, labels[rows], task, rows, width)
        if self.candidates is not None:
            self.slots.weight[targets] = self.candidates.weights.cpu().numpy()[rows]
        if self.logits is not None and len(targets):
            said = sight.of(rows).logits
            if self.candidates is not None and self.candidates.logits is not None:
                said = self.candidates.logits.index_select(0, self.engine.send(torch.from_numpy(rows)))
            self.logits.index_copy_(0, self.engine.send(torch.from_numpy(targets)), said)
        self.candidates = None

    def grow(self, size: int) -> None:
        """Make room for `size` images; what is held stays where it is."""
        more = size - self.size
        if more > 0:
            self.slots = self.slots.grown(size)
            self.pixels = torch.cat([self.pixels, self.pixels.new_zeros((more, *self.pixels.shape[1:]))])
            for name in BESIDE:
                old = getattr(self, name)
                if old is not None:
                    setattr(self, name, torch.cat([old, old.new_zeros((more, *old.shape[1:]))]))

    def keep(self, kept: np.ndarray, size: int) -> None:
        """Keep only the filled slots `kept`, moved to the front in this order, in a memory of `size`."""
        self.slots = self.slots.keep(kept, size)
        index = torch.from_numpy(kept).to(self.engine.device)
        for name in ("pixels", *BESIDE):
            old = getattr(self, name)
            if old is not None:
                new = old.new_zeros((size + 1, *old.shape[1:]))
                new[: len(kept)] = old.index_select(0, index)
                setattr(self, name, new)

    def grow_logits(self, classes: int) -> None:
        """Make room for the stored logits of more classes; what is stored keeps counting on its own columns only."""
        if self.logits is not None and classes > self.logits.shape[1]:
            more = torch.zeros((self.logits.shape[0], classes - self.logits.shape[1]), device=self.engine.device)
            self.logits = torch.cat([self.logits, more], 1)

    def ragged(self, classes: int) -> bool:
        """Whether some stored logits have fewer columns than the network has outputs now."""
        return bool((self.slots.width[: self.slots.count] < classes).any())
