"""The buffer: images and per-image tensors on the device, metadata of the slots on the CPU."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from itl.engine.device import Engine
from itl.engine.image_pool import ImageSource
from itl.memory.candidates import Candidates, PolicyOptions
from itl.memory.model_outputs import ModelOutputs
from itl.memory.online_selection import OnlineSelector
from itl.memory.registry import get_policy
from itl.memory.slots import Slots

OPTIONAL_TENSORS = ("logits", "scores", "edits")
"""Attributes of `Memory` that hold one row per image, `[size + 1, ...]` on the device, or None."""


class Memory:
    """A buffer of raw uint8 images of fixed size; images are augmented each time they are replayed.

    On the device there is one slot more than `size`, the dummy slot. It receives the writes of samples that are not
    kept, so that the writes of a step have a static shape.

    Args:
        size: Capacity in images.
        policy: Name of a memory policy.
        shape: (channels, height, width) of an image.
        num_outputs: Number of outputs of the network if the memory stores logits, else None.
        engine: Device and precision.
        weighted: Whether the policy's weights count in the loss. Default: if the policy assigns weights.
        options: Options of the policy.

    Attributes:
        slots: Metadata of the slots, on the CPU.
        pixels: uint8 `[size + 1, channels, height, width]`.
        logits: Stored logits, float32 `[size + 1, num_outputs]`, or None.
        scores: Scores of an online selector, float64 `[size + 1]`, or None.
        edits: What a method has added to each image, in the network's units, `[size + 1, channels, height, width]`, or
            None.
        candidates: Candidates of the current task, for policies that collect them.
        selector: Online selector of the current task, for policies that have one.
    """

    def __init__(
        self,
        size: int,
        policy: str,
        shape: tuple[int, int, int],
        num_outputs: int | None,
        engine: Engine,
        *,
        weighted: bool | None = None,
        options: PolicyOptions | None = None,
    ) -> None:
        self.policy, self.engine, self.options = get_policy(policy), engine, options or PolicyOptions()
        self.weighted = self.policy.assigns_weights if weighted is None else weighted
        self.slots = Slots.empty(size)
        self.candidates: Candidates | None = None
        self.selector: OnlineSelector | None = None
        self.pixels = torch.zeros((size + 1, *shape), dtype=torch.uint8, device=engine.device)
        self.logits: Tensor | None = None
        if num_outputs is not None:
            self.logits = torch.zeros((size + 1, num_outputs), device=engine.device)
        self.edits: Tensor | None = None
        self.scores: Tensor | None = None
        if self.policy.selector_class is not None:
            self.scores = torch.zeros(size + 1, dtype=torch.float64, device=engine.device)

    def __len__(self) -> int:
        """Number of images in memory."""
        return self.slots.count

    @property
    def size(self) -> int:
        """Capacity in images."""
        return self.slots.size

    @property
    def labels(self) -> np.ndarray:
        """Labels of the images in memory, int64 `[len(self)]`."""
        return self.slots.label[: self.slots.count]

    def gather(self, index: Tensor) -> Tensor:
        """Images `[k, channels, height, width]` in the slots `index` `[k]`."""
        return self.pixels.index_select(0, self.engine.send(index))

    def write_images(self, targets: np.ndarray, pool: ImageSource, rows: np.ndarray) -> None:
        """Copy the images `rows` of `pool` into the slots `targets` (all different); `slots` is left unchanged."""
        if len(targets):
            index = self.engine.send(torch.from_numpy(targets))
            self.pixels.index_copy_(0, index, pool.gather(torch.from_numpy(rows)))

    def clear_edits(self, targets: Tensor) -> None:
        """Reset the edits of the slots `targets`, which now hold other images."""
        if self.edits is not None:
            self.edits.index_fill_(0, targets, 0.0)

    def begin_task(self, count: int, saved: dict[str, Tensor]) -> None:
        """Prepare the policy for a task of `count` samples, or resume with the candidates' `saved` tensors."""
        if self.policy.candidates_class is not None:
            num_outputs = None if self.logits is None else self.logits.shape[1]
            self.candidates = self.policy.candidates_class(count, num_outputs, self.options, self.engine)
            if saved:
                self.candidates.restore(saved)
        if self.policy.selector_class is not None and self.scores is not None:
            self.selector = self.policy.selector_class(self.slots, self.scores, self.engine)

    def end_task(
        self,
        pool: ImageSource,
        labels: np.ndarray,
        task: int,
        width: int,
        rng: np.random.Generator,
        outputs: ModelOutputs,
    ) -> None:
        """B_t ← B_{t-1} ⊕ D_t, for the policies that select at the task's end.

        Args:
            pool: The task's training images.
            labels: Their labels, int64 `[n]`.
            task: Index of the task.
            width: Number of outputs of the network.
            rng: Generator of all draws.
            outputs: Outputs of the current network.
        """
        if self.candidates is not None:
            selected = self.candidates.select(self.slots, labels, rng, outputs, self.logits)
        else:
            chosen = self.policy.select_at_task_end(self.slots, labels, rng, outputs)
            if chosen is None:
                return
            selected = chosen
        targets, rows = selected
        index, row_index = (self.engine.send(torch.from_numpy(array)) for array in (targets, rows))
        self.write_images(targets, pool, rows)
        self.clear_edits(index)
        self.slots.write(targets, labels[rows], task, rows, width)
        if self.candidates is not None:
            self.slots.weight[targets] = self.candidates.weights.cpu().numpy()[rows]
        if self.logits is not None and len(targets):
            if self.candidates is not None and self.candidates.logits is not None:
                logits = self.candidates.logits.index_select(0, row_index)
            else:
                logits = outputs.for_rows(rows).logits
            self.logits.index_copy_(0, index, logits)
        self.candidates = None

    def grow(self, size: int) -> None:
        """Increase the capacity to `size`, if it is smaller; the images keep their slots."""
        added = size - self.size
        if added > 0:
            self.slots = self.slots.grown(size)
            for name, tensor in self._per_image_tensors().items():
                setattr(self, name, torch.cat([tensor, tensor.new_zeros((added, *tensor.shape[1:]))]))

    def keep(self, kept: np.ndarray, size: int) -> None:
        """Keep only the images in the slots `kept`, moved to the front in this order, with capacity `size`."""
        self.slots = self.slots.keep(kept, size)
        index = torch.from_numpy(kept).to(self.engine.device)
        for name, tensor in self._per_image_tensors().items():
            resized = tensor.new_zeros((size + 1, *tensor.shape[1:]))
            resized[: len(kept)] = tensor.index_select(0, index)
            setattr(self, name, resized)

    def grow_logits(self, classes: int) -> None:
        """Add columns to the stored logits; `slots.width` says how many of them count for each image."""
        if self.logits is not None and classes > self.logits.shape[1]:
            added = torch.zeros((self.logits.shape[0], classes - self.logits.shape[1]), device=self.engine.device)
            self.logits = torch.cat([self.logits, added], 1)

    def has_partial_logits(self, classes: int) -> bool:
        """Whether some stored logits have fewer columns than the network's `classes` outputs."""
        return bool((self.slots.width[: self.slots.count] < classes).any())

    def _per_image_tensors(self) -> dict[str, Tensor]:
        tensors = {name: getattr(self, name) for name in ("pixels", *OPTIONAL_TENSORS)}
        return {name: tensor for name, tensor in tensors.items() if tensor is not None}
